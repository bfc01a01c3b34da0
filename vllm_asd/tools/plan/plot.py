"""The plan as a picture: speed-up by draft length, and by concurrency or tokens per round beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_asd.tools.plan.plan import ArmPlan

_COLORS = {"strict": "#7b8794", "ASD": "#0b6e99"}
_LOSS = "#c0392b"


def draw(plans: Sequence[ArmPlan], subtitle: str, picture: Path) -> None:
    """Draw the two panels; the ending of `picture` chooses the format.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: An ending that matplotlib doesn't know.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), width_ratios=(3, 2))
    try:
        _by_length(left, plans)
        if all(plan.load is not None for plan in plans):
            _by_concurrency(right, plans)
        else:
            _tokens(right, plans)
        for axis in (left, right):
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(subtitle, fontsize=9)
        figure.tight_layout()
        figure.savefig(picture, dpi=130)
    finally:
        plt.close(figure)


def _by_length(axis: Any, plans: Sequence[ArmPlan]) -> None:
    for plan in plans:
        color = _COLORS[plan.arm.name]
        known = [row for row in plan.rows if not row.extrapolated]
        beyond = plan.rows[max(len(known) - 1, 0) :]
        axis.plot(
            [r.k for r in known], [r.speedup for r in known], "o-", ms=4, color=color, label=plan.arm.name
        )
        if len(beyond) > 1:
            axis.plot([r.k for r in beyond], [r.speedup for r in beyond], "--", lw=1.2, color=color)
        if plan.arm.measured_k is not None:
            independent = [row.independent_speedup for row in plan.rows]
            axis.plot([r.k for r in plan.rows], independent, ":", lw=1.2, color=color)
        best = plan.best
        axis.plot([best.k], [best.speedup], "*", ms=14, color=color, zorder=4)
        label = f"k={best.k}: {best.speedup:.2f}x"
        at = (best.k, best.speedup)
        ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.5, "pad": 1}
        style = {"fontsize": 8, "color": color, "bbox": ground, "zorder": 5}
        axis.annotate(label, at, (9, 6), textcoords="offset points", **style)
    axis.set_xlabel("draft tokens per round, k")
    axis.set_xticks(range(1, len(plans[0].rows) + 1))
    handles, _ = axis.get_legend_handles_labels()
    if any(row.extrapolated for plan in plans for row in plan.rows):
        handles += axis.plot([], [], "--", color="black", lw=1.2, label="extrapolated")
    if any(plan.arm.measured_k is not None for plan in plans):
        handles += axis.plot([], [], ":", color="black", lw=1.2, label="if independent")
    _speedup_axis(axis, 0.99, "right")
    axis.legend(handles=handles, frameon=False, fontsize=8)


def _by_concurrency(axis: Any, plans: Sequence[ArmPlan]) -> None:
    for plan in plans:
        if plan.load is None:
            continue
        color = _COLORS[plan.arm.name]
        users = list(plan.load.speedups)
        label = f"{plan.arm.name}, k={plan.load.k}"
        axis.plot(*zip(*plan.load.line, strict=True), "-", color=color)
        axis.plot(users, list(plan.load.speedups.values()), "o", ms=4, color=color, label=label)
        if users[0] <= plan.load.break_even <= users[-1]:
            axis.axvline(plan.load.break_even, ls=":", lw=1.2, color=color)
    axis.set_xscale("log", base=2)
    axis.set_xticks(users, [f"{value:g}" for value in users])
    axis.minorticks_off()
    axis.set_xlabel("concurrency (dotted: breaks even)")
    _speedup_axis(axis, 0.01, "left")
    axis.legend(frameon=False, fontsize=8)


def _tokens(axis: Any, plans: Sequence[ArmPlan]) -> None:
    for plan in plans:
        color = _COLORS[plan.arm.name]
        ks = [row.k for row in plan.rows]
        known = [row for row in plan.rows if not row.extrapolated]
        axis.plot(
            [r.k for r in known],
            [r.expected_tokens for r in known],
            "o-",
            ms=4,
            color=color,
            label=plan.arm.name,
        )
        axis.plot(ks, [row.expected_tokens for row in plan.rows], "--", lw=1.2, color=color)
    axis.set_xticks(ks[::3])
    axis.set_xlabel("draft tokens per round, k")
    axis.set_ylabel("expected tokens per round")
    axis.legend(frameon=False, fontsize=8)


def _speedup_axis(axis: Any, text_at: float, side: str) -> None:
    """Head-room for the labels, and red where plain decoding is faster."""
    low, high = axis.get_ylim()
    low, high = min(low, 0.9), max(high + 0.08 * (high - low), 1.1)
    axis.set_ylim(low, high)
    axis.axhspan(low, 1, color=_LOSS, alpha=0.07, lw=0)
    axis.axhline(1, color=_LOSS, lw=1)
    place = axis.get_yaxis_transform()
    text = "slower than without speculation"
    axis.text(text_at, 1, text, transform=place, va="top", ha=side, fontsize=7, color=_LOSS)
    axis.set_ylabel("speed-up against plain decoding")
