"""The report's three pictures, as SVG: quality per task, gain against quality, and where regret was spent."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vllm_asd.tools.audit.groups import all_regrets
from vllm_asd.tools.audit.items import Item
from vllm_asd.tools.audit.report_schema import BLIND, AuditReport, Estimate, Group, ScoreChange

QUALITY, GAIN, REGRET = "quality.svg", "gain.svg", "regret.svg"

_COLORS = {"non-inferior": "#0b6e99", "undecided": "#b7791f", "inferior": "#b3261e"}
_NOISE, _GUIDE, _TEXT = "#9aa5b1", "#c9d1d9", "#30363d"
# Between two names at the side of a picture, as a share of its height.
_NAME_GAP = 0.055
_STYLE = {
    "font.size": 9,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    # Same data, same file: no random ids.
    "svg.hashsalt": "vllm-asd",
}


def draw_all(report: AuditReport, asd: Sequence[Item], folder: Path) -> None:
    """Write the pictures into `folder`.

    Args:
        report: The audit.
        asd: ASD's answers, for the distributions of regret.
        folder: An existing folder.
    """
    with mpl.rc_context(_STYLE):
        for name, figure in (
            (QUALITY, quality(report)),
            (GAIN, gain(report)),
            (REGRET, regret(asd)),
        ):
            figure.savefig(folder / name, format="svg", bbox_inches="tight", metadata={"Date": None})


def quality(report: AuditReport) -> Figure:
    """Difference in score per task with the interval that the verdict rests on, beside the margin."""
    groups = [(group, group.asd.score) for group in report.tasks if group.asd.score]
    if report.overall.score:
        groups.append((report.pooled, report.overall.score))
    figure = Figure(figsize=(8, 1.3 + 0.55 * len(groups)))
    axis = figure.add_subplot()
    for place, (group, score) in enumerate(groups):
        _score_bar(axis, place, score, _color(group, score), hollow=_is_blind(group))
        if group.noise and group.noise.score and group is not report.pooled:
            _score_bar(axis, place + 0.3, group.noise.score, _NOISE, hollow=False)
    axis.axvline(0, color=_GUIDE, zorder=0)
    axis.axvline(-100 * report.margin, color=_COLORS["inferior"], linestyle="--", linewidth=1, zorder=0)
    axis.axhline(len(groups) - 1.35, color=_GUIDE, linewidth=0.8)
    axis.set_yticks(range(len(groups)), [f"{group.name} ({score.pairs})" for group, score in groups])
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.set_xlabel(
        f"difference in score, points, {100 - 200 * report.alpha:.0f}% interval "
        f"(dashed: margin of {100 * report.margin:g})"
    )
    _quality_legend(axis, [group for group, _ in groups])
    _tidy(axis)
    return figure


def _quality_legend(axis: Axes, groups: Sequence[Group]) -> None:
    for verdict, color in _COLORS.items():
        axis.plot([], [], "o-", color=color, label=verdict)
    axis.plot([], [], "o-", color=_NOISE, label="strict against itself")
    if any(_is_blind(group) for group in groups):
        axis.plot([], [], "o-", color=_TEXT, markerfacecolor="white", label="score can't show a loss")
    axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=5)


def gain(report: AuditReport) -> Figure:
    """Tokens per round gained against score lost or won, one point per task: up and to the right is good."""
    figure = Figure(figsize=(8, 4.2))
    axis = figure.add_subplot()
    points = [_gain_point(axis, group, group.asd.score) for group in report.tasks]
    points.append(_gain_point(axis, report.pooled, report.overall.score))
    axis.axhline(0, color=_GUIDE, zorder=0)
    axis.axvline(1, color=_GUIDE, zorder=0)
    axis.axhline(-100 * report.margin, color=_COLORS["inferior"], linestyle="--", linewidth=1, zorder=0)
    axis.set_xlabel("tokens per verification round, ASD over strict (95% interval)")
    axis.set_ylabel("difference in score, points (dashed: margin)")
    _name_points(axis, [point for point in points if point])
    _tidy(axis)
    return figure


def regret(asd: Sequence[Item]) -> Figure:
    """How much regret single exceptions cost, and how much whole answers spent."""
    figure = Figure(figsize=(8, 3))
    left, right = figure.subplots(1, 2)
    _histogram(left, all_regrets(asd), "regret of an exception, nats", "exceptions")
    spent = [item.regret_spent for item in asd if item.exceptions]
    _histogram(right, spent, "regret spent by an answer, nats", f"of {len(asd)} answers with exceptions")
    figure.tight_layout()
    return figure


def _score_bar(axis: Axes, place: float, score: ScoreChange, color: str, hollow: bool) -> None:
    axis.plot([100 * score.low, 100 * score.high], [place, place], color=color, linewidth=1.6)
    face = "white" if hollow else color
    axis.plot(100 * score.difference.value, place, "o", color=color, markerfacecolor=face, markersize=5)


def _gain_point(axis: Axes, group: Group, score: ScoreChange | None) -> tuple[str, float, float] | None:
    """Draw a point with both intervals; returns its name and place, None where it has none."""
    speed, is_pool = group.asd.tokens_per_round, group.sight is None
    if speed is None or score is None:
        return None
    color = _color(group, score)
    x, y = speed.value, 100 * score.difference.value
    axis.plot(_ends(speed), [y, y], color=color, linewidth=1)
    axis.plot([x, x], [100 * score.low, 100 * score.high], color=color, linewidth=1)
    face, shape, size = "white" if _is_blind(group) else color, "D" if is_pool else "o", 7 if is_pool else 5
    axis.plot(x, y, shape, color=color, markerfacecolor=face, markersize=size)
    return group.name, x, y


def _name_points(axis: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write the names in a column at the right, each joined to its point: points may lie close together."""
    low, high = axis.get_ylim()
    place = -_NAME_GAP
    for name, x, y in sorted(points, key=lambda point: point[2]):
        place = max(place + _NAME_GAP, (y - low) / (high - low))
        axis.annotate(
            name,
            (x, y),
            xytext=(1.03, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": _GUIDE, "linewidth": 0.8, "relpos": (0, 0.5)},
        )


def _ends(estimate: Estimate) -> list[float]:
    return [estimate.value if end is None else end for end in (estimate.low, estimate.high)]


def _histogram(axis: Axes, values: Sequence[float], label: str, what: str) -> None:
    if len(values):
        axis.hist(values, bins=min(40, max(8, int(np.sqrt(len(values))))), color=_COLORS["non-inferior"])
        mean = float(np.mean(values))
        axis.axvline(mean, color=_TEXT, linewidth=1)
        axis.set_title(f"{len(values)} {what}, mean {mean:.3f}", fontsize=9)
    else:
        axis.set_title(f"no {what}", fontsize=9)
    axis.set_xlabel(label)
    axis.set_ylabel("how many")
    _tidy(axis)


def _color(group: Group, score: ScoreChange) -> str:
    return _TEXT if _is_blind(group) else _COLORS[score.verdict]


def _is_blind(group: Group) -> bool:
    return group.sight in BLIND


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
