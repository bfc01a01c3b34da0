"""The figures of one task, or of all items pooled."""

from collections.abc import Sequence

import numpy as np
from statsmodels.stats.proportion import proportion_confint

from vllm_asd.tools.audit.compare import compare, mean_difference
from vllm_asd.tools.audit.items import Arm, Item
from vllm_asd.tools.audit.pairs import ItemArms
from vllm_asd.tools.audit.report_schema import ArmFigures, Group, LengthBand, Sight, Spending, Spread

FLOOR = 0.05
CEILING = 0.95
_BANDS = 4


def group(name: str, rows: Sequence[ItemArms], margin: float, sight: Sight | None = None) -> Group:
    """Compute a group.

    Args:
        name: Of the task, or "pooled".
        rows: Its items.
        margin: Tolerated loss of score.
        sight: Whether the score can show a loss.
    """
    control, asd = [row.control for row in rows], [row.asd for row in rows]
    repeated = [(row.control, row.again) for row in rows if row.again is not None]
    again = [item for _, item in repeated]
    arms: dict[Arm, ArmFigures] = {"control": figures(control), "asd": figures(asd)}
    if again:
        arms["control-again"] = figures(again)
    return Group(
        name=name,
        sight=sight,
        arms=arms,
        asd=compare(list(zip(control, asd, strict=True)), margin, [_control_seconds(row) for row in rows]),
        noise=compare(repeated, margin, [first.latency_s for first, _ in repeated]) if repeated else None,
        spending=spending(asd),
        bands=length_bands(rows),
    )


def _control_seconds(row: ItemArms) -> float:
    """Mean of the runs before and after ASD's, so that a steady drift cancels."""
    if row.again is None:
        return row.control.latency_s
    return (row.control.latency_s + row.again.latency_s) / 2


def sight_of(control: Sequence[Item], chance: float | None) -> Sight:
    """Whether a task's score can show a loss, from the control's scores.

    Args:
        control: The control's answers.
        chance: Score of blind guessing; None where guessing gives nothing.

    At chance means: the 95% Wilson interval of the control's score reaches down to it.
    """
    scores = [item.score for item in control if item.score is not None]
    if not scores:
        return "unscored"
    score = _mean(scores)
    if score < FLOOR:
        return "floor"
    if chance is not None:
        low, _ = proportion_confint(score * len(scores), len(scores), method="wilson")
        if low <= chance:
            return "chance"
    return "ceiling" if score > CEILING else "sees"


def figures(items: Sequence[Item]) -> ArmFigures:
    """What one arm did."""
    rounds, seconds = sum(item.rounds for item in items), sum(item.latency_s for item in items)
    scores = [item.score for item in items if item.score is not None]
    scored = [item for item in items if item.score is not None]
    likelihoods = [item.loglikelihood for item in items if item.loglikelihood is not None]
    return ArmFigures(
        items=len(items),
        score=_mean(scores) if scores else None,
        tokens=_mean([item.tokens for item in items]),
        cut=_mean([item.finish_reason == "length" for item in items]),
        tokens_per_round=_ratio(rounds + sum(item.accepted for item in items), rounds),
        seconds=seconds / len(items),
        rounds_per_solved=_ratio(sum(item.rounds for item in scored), sum(scores)),
        seconds_per_solved=_ratio(sum(item.latency_s for item in scored), sum(scores)),
        loglikelihood=_mean(likelihoods) if likelihoods else None,
    )


def spending(items: Sequence[Item]) -> Spending:
    """What ASD's answers cost in exceptions and regret."""
    exceptions = sum(item.exceptions for item in items)
    ends = [item.exhausted_at for item in items if item.exhausted_at is not None]
    counted = [item for item in items if item.strict_accepted is not None]
    rounds = sum(item.rounds for item in counted)
    return Spending(
        exceptions_per_answer=exceptions / len(items),
        exceptions_per_100_tokens=_ratio(100 * exceptions, sum(item.tokens for item in items)),
        answers_with_exceptions=_mean([item.exceptions > 0 for item in items]),
        regret_per_answer=_spread([item.regret_spent for item in items]),
        regret_per_exception=_spread(regrets) if (regrets := all_regrets(items)) else None,
        exhausted=len(ends) / len(items),
        exhausted_at=float(np.median(ends)) if ends else None,
        same_block_gain=_ratio(
            rounds + sum(item.accepted for item in counted),
            rounds + sum(item.strict_accepted or 0 for item in counted),
        ),
    )


def all_regrets(items: Sequence[Item]) -> list[float]:
    """Regret of every exception, in nats."""
    return [regret for item in items for regret in item.exception_regrets]


def length_bands(rows: Sequence[ItemArms]) -> list[LengthBand]:
    """Quarters of the scored items by the control's length; fewer where many answers are equally long."""
    rows = [row for row in rows if row.control.score is not None]
    if not rows:
        return []
    lengths = np.array([row.control.tokens for row in rows])
    edges = np.quantile(lengths, np.arange(1, _BANDS) / _BANDS)
    band_of = np.searchsorted(edges, lengths, side="left")
    bands = []
    for band in np.unique(band_of):
        inside = [row for row, of in zip(rows, band_of, strict=True) if of == band]
        tokens = [row.control.tokens for row in inside]
        difference = mean_difference([(row.control, row.asd) for row in inside])
        assert difference is not None
        bands.append(
            LengthBand(
                shortest=min(tokens),
                longest=max(tokens),
                pairs=len(inside),
                difference=difference,
            )
        )
    return bands


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _ratio(upper: float, lower: float) -> float | None:
    return upper / lower if lower else None


def _spread(values: Sequence[float]) -> Spread:
    median, p90 = np.quantile(values, (0.5, 0.9))
    return Spread(mean=_mean(values), median=float(median), p90=float(p90), largest=max(values))
