"""The frontier in one picture, and the windows of long answers in another."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

from eval.frontier.curves import Point, ReplayedPoint
from eval.frontier.windows import WINDOW_TOKENS, Window
from eval.statistics.resampling import Interval

mpl.use("Agg")
from matplotlib import pyplot as plt

_STYLES: dict[str, tuple[str, str, str]] = {
    "paper": ("#222222", "o", "paper's rule"),
    "paper-b8": ("#222222", "*", "paper's rule, budget 8"),
    "realized": ("#0b6e99", "s", "realized pricing"),
    "lookahead": ("#c0392b", "D", "look-ahead"),
    "fly": ("#8e6c8a", "^", "FLy (vLLM 0.33)"),
    "relaxed": ("#5b8c5a", "v", "relaxed top-N, delta (TensorRT-LLM)"),
    "ratio": ("#d08c2e", "<", "ratio threshold"),
    "typical": ("#999999", ">", "typical acceptance (Medusa)"),
}
_OURS = ("paper", "realized", "lookahead")
_PANELS = (
    ("replayed", "regret", "regret, nats per token", "gain in the control's own blocks, %"),
    ("gain", "regret", "regret, nats per token", "gain over the strict run, %"),
    ("same_blocks", "regret", "regret, nats per token", "gain over strict in the same blocks, %"),
    ("same_blocks", "exceptions", "exceptions per 100 tokens", "gain over strict in the same blocks, %"),
    (
        "gain",
        "median_divergence",
        "token where answers part from strict's, median",
        "gain over the strict run, %",
    ),
)


def draw_frontier(
    points: Mapping[str, Sequence[Point]],
    replayed: Mapping[str, Sequence[ReplayedPoint]],
    title: str,
    picture: Path,
) -> None:
    """Draw gain against cost: a row per measure, a column per task.

    Args:
        points: By task, the pooled ones included.
        replayed: The same for the control's blocks decided again.
        title: Above it all.
        picture: Where to write it; the ending chooses the format.
    """
    size = (4.2 * len(points) + 0.4, 16.6)
    figure, axes = plt.subplots(len(_PANELS), len(points), figsize=size, squeeze=False, sharey="row")
    for column, task in enumerate(points):
        for row, (measure, cost, x_label, y_label) in enumerate(_PANELS):
            axis = axes[row][column]
            rows: Sequence[Point | ReplayedPoint] = (replayed if measure == "replayed" else points)[task]
            for family in dict.fromkeys(point.family for point in rows):
                _draw_family(axis, [p for p in rows if p.family == family], measure, cost)
            axis.set_xlabel(x_label, fontsize=8)
            axis.set_xlim(0, _right_end(rows) if cost == "regret" else None)
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=8)
            if column == 0:
                axis.set_ylabel(y_label, fontsize=8)
            if row == 0:
                axis.set_title(task, fontsize=10)
    handles, labels = axes[1][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower center", ncols=min(4, 2 * len(points)), frameon=False, fontsize=8
    )
    figure.suptitle(title, fontsize=10)
    figure.tight_layout(rect=(0, 0.04, 1, 0.99))
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def _draw_family(axis: "plt.Axes", points: Sequence[Point | ReplayedPoint], measure: str, cost: str) -> None:
    color, marker, label = _STYLES[points[0].family]
    pairs = [(_place(getattr(p, cost)), getattr(p, measure)) for p in sorted(points, key=lambda p: p.knob)]
    x, y = [at for at, _ in pairs], [100 * gain.value for _, gain in pairs]
    low = [100 * (gain.value - (gain.low if gain.low is not None else gain.value)) for _, gain in pairs]
    high = [100 * ((gain.high if gain.high is not None else gain.value) - gain.value) for _, gain in pairs]
    axis.errorbar(x, y, yerr=(low, high), fmt="none", ecolor=color, alpha=0.3, linewidth=1)
    ours = points[0].family in _OURS
    if len(points) > 1 and cost != "median_divergence":
        x, y = [0.0, *x], [0.0, *y]
    axis.plot(
        x, y, color=color, marker=marker, markersize=5, label=label,
        linewidth=1.6 if ours else 1, linestyle="-" if ours else "--",
    )  # fmt: skip


def _right_end(points: Sequence[Point | ReplayedPoint]) -> float | None:
    """Not far behind our last setting: a rival without bounds would press all else to the left."""
    return 1.5 * max((p.regret.value for p in points if p.family in _OURS), default=0) or None


def _place(cost: Interval | float) -> float:
    return cost.value if isinstance(cost, Interval) else cost


def draw_windows(rows: Sequence[Window], title: str, picture: Path) -> None:
    """Draw gain and regret by window, a line per arm.

    Args:
        rows: All arms and windows.
        title: Above it all.
        picture: Where to write it.
    """
    figure, axes = plt.subplots(1, 4, figsize=(17, 4))
    names = list(dict.fromkeys(row.arm for row in rows))
    for index, arm in enumerate(names):
        mine = [row for row in rows if row.arm == arm]
        x = [row.first_token + WINDOW_TOKENS / 2 for row in mine]
        for axis, measure in zip(axes[:2], ("gain", "same_blocks"), strict=True):
            found = [(at, getattr(row, measure)) for at, row in zip(x, mine, strict=True)]
            found = [(at, interval) for at, interval in found if interval is not None]
            places = [at for at, _ in found]
            low, value, high = (
                [100 * (getattr(i, end) or 0) for _, i in found] for end in ("low", "value", "high")
            )
            axis.plot(places, value, color=f"C{index}", marker="o", markersize=4, label=arm)
            axis.fill_between(places, low, high, color=f"C{index}", alpha=0.12, linewidth=0)
        axes[2].plot(x, [row.regret for row in mine], color=f"C{index}", marker="o", markersize=4)
        axes[3].plot(x, [100 * row.repeated for row in mine], color=f"C{index}", marker="o", markersize=4)
    labels = (
        "gain over the strict run, %",
        "gain over strict in the same blocks, %",
        "regret, nats per token",
        "repeated 4-grams, % of the window",
    )
    for axis, label in zip(axes, labels, strict=True):
        axis.set_ylabel(label, fontsize=8)
        axis.set_xlabel("output token (middle of the window)", fontsize=8)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(picture, dpi=130)
    plt.close(figure)
