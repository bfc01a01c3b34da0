"""Figures in words: numbers with their intervals, and whether a change is for the better."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vllm_asd.tools.audit.report_schema import ArmFigures, Comparison, Estimate, Group
from vllm_asd.tools.statistics.resampling import CONFIDENCE

Reading = Literal[
    "better", "worse", "no clear change", "differs", "not measured", "too few items", "strict drifted"
]
# A bootstrap of fewer items is too narrow to read a change from.
FEWEST = 20
_MINUS = "\u2212"


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign, and a true minus; a rounded zero has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", _MINUS)


def points(estimate: Estimate | None) -> str:
    """A difference of fractions in points of 100."""
    return _with_interval(estimate, "{} ({} to {})", lambda value: signed(100 * value))


def percent(estimate: Estimate | None) -> str:
    """A share in percent."""
    return _with_interval(estimate, "{}% ({}\u2013{})", lambda value: f"{100 * value:.1f}")


def ratio(estimate: Estimate | None) -> str:
    """A ratio."""
    return _with_interval(estimate, "x{} ({}\u2013{})", lambda value: f"{value:.3f}")


def nats(estimate: Estimate | None) -> str:
    """A difference in nats."""
    return _with_interval(estimate, "{} ({} to {})", lambda value: signed(value, 4))


def number(value: float | None, digits: int = 2) -> str:
    """A plain number."""
    return "-" if value is None else f"{value:.{digits}f}"


def p_value(value: float | None) -> str:
    """A p-value."""
    return "<0.001" if value is not None and value < 1e-3 else number(value, 3)


def _with_interval(estimate: Estimate | None, pattern: str, write: Callable[[float], str]) -> str:
    if estimate is None:
        return "-"
    ends = ("open" if end is None else write(end) for end in (estimate.low, estimate.high))
    return pattern.format(write(estimate.value), *ends)


@dataclass(frozen=True)
class Measure:
    """One figure that the report compares.

    Attributes:
        name: As the report writes it.
        unit: Of the arm's own figure.
        arm: The arm's own figure, written out; None where an arm alone has none.
        change: The comparison's figure.
        write: How the change is written.
        neutral: The value of the change that means none.
        better: +1 if a larger change is better, -1 if a smaller one is, 0 if it is neither.
        is_clear: What must hold beside the interval for a change to count; None for nothing.
    """

    name: str
    unit: str
    arm: Callable[[ArmFigures], str] | None
    change: Callable[[Comparison], Estimate | None]
    write: Callable[[Estimate | None], str]
    neutral: float
    better: int
    is_clear: Callable[[Comparison], bool] | None = None

    @property
    def label(self) -> str:
        """Name and unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def sentence(self, comparison: Comparison) -> str:
        """Name and change; a difference carries the unit, a ratio has none."""
        unit = f" {self.unit}" if self.unit and self.write is not ratio else ""
        return f"{self.name}: {self.write(self.change(comparison))}{unit}"

    def of_arm(self, arm: ArmFigures) -> str:
        """The arm's own figure, empty where there is none."""
        return self.arm(arm) if self.arm else ""

    def reading(self, comparison: Comparison, noise: Comparison | None) -> Reading:
        """Whether the 95% interval excludes "no change", and on which side.

        Args:
            comparison: ASD against strict.
            noise: Strict against itself. Where that moved as far, no change is read off the other.
        """
        found = self._side(comparison)
        itself = self.change(noise) if noise else None
        if found not in ("better", "worse") or itself is None:
            return found
        moved = self.change(comparison)
        assert moved is not None
        drifted = abs(itself.value - self.neutral) >= abs(moved.value - self.neutral)
        return "strict drifted" if drifted else found

    def _side(self, comparison: Comparison) -> Reading:
        estimate = self.change(comparison)
        if estimate is None:
            return "not measured"
        if comparison.pairs < FEWEST:
            return "too few items"
        if self.is_clear and not self.is_clear(comparison):
            return "no clear change"
        if self.better == 0:
            return "differs" if estimate.value != self.neutral else "no clear change"
        if estimate.low is not None and estimate.low > self.neutral:
            return "better" if self.better > 0 else "worse"
        if estimate.high is not None and estimate.high < self.neutral:
            return "worse" if self.better > 0 else "better"
        return "no clear change"


def _of_100(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _score_difference(comparison: Comparison) -> Estimate | None:
    return comparison.score.difference if comparison.score else None


def _passes_mcnemar(comparison: Comparison) -> bool:
    """A bootstrap of four losses and no gain excludes zero, which chance alone often brings."""
    p_value = comparison.score.mcnemar_p if comparison.score else None
    return p_value is None or p_value < 1 - CONFIDENCE


MEASURES = (
    Measure("score", "points", lambda a: _of_100(a.score), _score_difference, points, 0, 1, _passes_mcnemar),
    Measure(
        "tokens per verification round",
        "",
        lambda a: number(a.tokens_per_round),
        lambda c: c.tokens_per_round,
        ratio,
        1,
        1,
    ),
    Measure("wall time per answer", "s", lambda a: number(a.seconds), lambda c: c.seconds, ratio, 1, -1),
    Measure(
        "rounds per solved item",
        "",
        lambda a: number(a.rounds_per_solved, 1),
        lambda c: c.rounds_per_solved,
        ratio,
        1,
        -1,
    ),
    Measure(
        "wall time per solved item",
        "s",
        lambda a: number(a.seconds_per_solved),
        lambda c: c.seconds_per_solved,
        ratio,
        1,
        -1,
    ),
    Measure(
        "log-likelihood per token",
        "nats",
        lambda a: number(a.loglikelihood, 4).replace("-", _MINUS),
        lambda c: c.loglikelihood,
        nats,
        0,
        1,
    ),
    Measure("tokens per answer", "", lambda a: number(a.tokens, 1), lambda c: c.length, ratio, 1, -1),
    Measure("answers cut off", "%", lambda a: _of_100(a.cut), lambda c: c.cut, points, 0, -1),
    Measure("answers that differ", "", None, lambda c: c.answers_changed, percent, 0, 0),
    Measure("extracted answers that agree", "", None, lambda c: c.extracted_agree, percent, 1, 0),
)


def measures_read_as(group: Group, reading: Reading) -> list[Measure]:
    """The measures of a group whose change reads so."""
    return [measure for measure in MEASURES if measure.reading(group.asd, group.noise) == reading]
