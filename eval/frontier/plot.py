"""The frontier: every measure for every task in one picture, and what matters of it in another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

from eval.frontier.curves import Point, ReplayedPoint
from vllm_asd.tools.statistics.resampling import Interval

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

_STYLES: dict[str, tuple[str, str, str]] = {
    "again": ("#222222", "x", "strict, a second time"),
    "paper": ("#222222", "o", "paper's rule"),
    "paper-b8": ("#222222", "*", "paper's rule, budget 8"),
    "paper-b8-r0.03": ("#666666", "*", "paper's rule, budget 8, refill"),
    "paper-guard": ("#666666", "o", "paper's rule, guarded"),
    "realized": ("#0b6e99", "s", "realized pricing"),
    "realized-b8-r0.03": ("#5aa9c9", "s", "realized, budget 8, refill"),
    "lookahead": ("#c0392b", "D", "look-ahead"),
    "fly": ("#8e6c8a", "^", "FLy (vLLM 0.33)"),
    "relaxed": ("#5b8c5a", "v", "relaxed top-N, delta (TensorRT-LLM)"),
    "ratio": ("#d08c2e", "<", "ratio threshold"),
    "typical": ("#999999", ">", "typical acceptance (Medusa)"),
}
_OURS = ("paper", "realized", "lookahead")
_NATS, _EXCEPTIONS = "regret, nats per token", "exceptions per 100 tokens"
_REPLAYED, _GAIN, _SAME = (
    f"gain {against}, %"
    for against in ("in the control's own blocks", "over the strict run", "over strict in the same blocks")
)


class _Panel(NamedTuple):
    measure: str
    cost: str
    x_label: str
    y_label: str


_PANELS = (
    _Panel("replayed", "regret", _NATS, _REPLAYED),
    _Panel("gain", "regret", _NATS, _GAIN),
    _Panel("same_blocks", "regret", _NATS, _SAME),
    _Panel("same_blocks", "exceptions", _EXCEPTIONS, _SAME),
    _Panel("gain", "median_divergence", "token where answers part from strict's, median", _GAIN),
)
_OVERVIEW = (
    _PANELS[0],
    _Panel("replayed", "exceptions", _EXCEPTIONS, _REPLAYED),
    _PANELS[1],
    _Panel("gain", "exceptions", _EXCEPTIONS, _GAIN),
)
_Points = Mapping[str, Sequence[Point]]
_Replayed = Mapping[str, Sequence[ReplayedPoint]]


def draw_frontier(points: _Points, replayed: _Replayed, title: str, picture: Path) -> None:
    """Draw gain against cost: a row per measure, a column per task.

    Args:
        points: By task, the pooled ones included; a measure that no arm has is left out.
        replayed: The same for the control's blocks decided again.
        title: Above it all.
        picture: Where to write it; the ending chooses the format.
    """
    panels = [p for p in _PANELS if any(_rows(p, task, points, replayed) for task in points)]
    size = (4.2 * len(points) + 0.4, 3.1 * len(panels) + 1)
    figure, axes = plt.subplots(len(panels), len(points), figsize=size, squeeze=False, sharey="row")
    for column, task in enumerate(points):
        for axis, panel in zip(axes[:, column], panels, strict=True):
            _draw_panel(axis, panel, _rows(panel, task, points, replayed))
            if column > 0:
                axis.set_ylabel("")
        axes[0][column].set_title(task, fontsize=10)
    _finish(figure, axes, title, picture)


def draw_overview(points: _Points, replayed: _Replayed, task: str, title: str, picture: Path) -> None:
    """Draw one task's gain against regret and exceptions, as :func:`draw_frontier` does."""
    panels = [p for p in _OVERVIEW if _rows(p, task, points, replayed)]
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 4.2), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        _draw_panel(axis, panel, _rows(panel, task, points, replayed))
    _finish(figure, axes, title, picture)


def _rows(panel: _Panel, task: str, points: _Points, replayed: _Replayed) -> Sequence[Point | ReplayedPoint]:
    return replayed[task] if panel.measure == "replayed" else points[task]


def _draw_panel(axis: "plt.Axes", panel: _Panel, rows: Sequence[Point | ReplayedPoint]) -> None:
    for family in dict.fromkeys(point.family for point in rows):
        _draw_family(axis, [p for p in rows if p.family == family], panel.measure, panel.cost)
    axis.set_xlabel(panel.x_label, fontsize=8)
    axis.set_ylabel(panel.y_label, fontsize=8)
    axis.set_xlim(0, _right_end(rows) if panel.cost == "regret" else None)
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def _finish(figure: "Figure", axes: Any, title: str, picture: Path) -> None:
    """Add the legend, every family once, and write the picture."""
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    columns = min(4, 2 * axes.shape[1])
    figure.legend(handles.values(), handles, loc="lower center", ncols=columns, frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    lines = -(-len(handles) // columns)
    figure.tight_layout(rect=(0, 0.22 * lines / figure.get_figheight() + 0.01, 1, 1))
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
