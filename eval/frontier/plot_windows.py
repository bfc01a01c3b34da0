"""Gain and cost of long answers, window by window."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from eval.frontier.windows import WINDOW_TOKENS, Window

mpl.use("Agg")
from matplotlib import pyplot as plt


def draw_windows(rows: Sequence[Window], title: str, picture: Path) -> None:
    """Draw gain and regret by window, a line per arm.

    Args:
        rows: All arms and windows.
        title: Above it all.
        picture: Where to write it.
    """
    figure, axes = plt.subplots(1, 5, figsize=(21, 4))
    names = list(dict.fromkeys(row.arm for row in rows))
    for index, arm in enumerate(names):
        mine = [row for row in rows if row.arm == arm]
        x = [row.first_token + WINDOW_TOKENS / 2 for row in mine]
        for axis, measure in zip(axes[:3], ("gain", "same_blocks", "fresh_blocks"), strict=True):
            found = [(at, getattr(row, measure)) for at, row in zip(x, mine, strict=True)]
            found = [(at, interval) for at, interval in found if interval is not None]
            places = [at for at, _ in found]
            low, value, high = (
                [100 * (getattr(i, end) or 0) for _, i in found] for end in ("low", "value", "high")
            )
            axis.plot(places, value, color=f"C{index}", marker="o", markersize=4, label=arm)
            axis.fill_between(places, low, high, color=f"C{index}", alpha=0.12, linewidth=0)
        axes[3].plot(x, [row.regret for row in mine], color=f"C{index}", marker="o", markersize=4)
        axes[4].plot(x, [100 * row.repeated for row in mine], color=f"C{index}", marker="o", markersize=4)
    labels = (
        "gain over the strict run, %",
        "gain over strict in the same blocks, %",
        "the same, windows that do not repeat themselves, %",
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
