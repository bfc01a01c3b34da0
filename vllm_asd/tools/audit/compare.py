"""One arm against the control: every figure of the comparison from one set of resampled sums."""

from collections.abc import Callable, Sequence

import numpy as np
from statsmodels.stats.proportion import proportion_confint

from vllm_asd.tools.audit.items import Item
from vllm_asd.tools.audit.report_schema import Comparison, Estimate, ScoreChange
from vllm_asd.tools.statistics.noninferiority import noninferiority_test
from vllm_asd.tools.statistics.resampling import CONFIDENCE, Floats, ResampledSums, Sums

Pair = tuple[Item, Item]


def compare(pairs: Sequence[Pair], margin: float, baseline_seconds: Sequence[float]) -> Comparison:
    """Compare the second item of each pair with the first.

    Args:
        pairs: Control and other arm, of any tasks; resampling keeps each task's number of items.
        margin: Tolerated loss of score.
        baseline_seconds: Wall time [n] that the other arm's is set against.
    """
    sums = ResampledSums.of(_columns(pairs, baseline_seconds), strata=[first.task for first, _ in pairs])

    def estimate(statistic: Callable[[Sums], Floats]) -> Estimate | None:
        interval = sums.interval(statistic)
        return Estimate.of(interval) if interval else None

    def mean(name: str, over: str = "pairs") -> Estimate | None:
        return estimate(lambda s: s[name] / s[over])

    return Comparison(
        pairs=len(pairs),
        score=score_change(pairs, margin),
        answers_changed=_surely(_share([a.answer_hash != b.answer_hash for a, b in pairs])),
        extracted_agree=_share([a.extracted == b.extracted for a, b in pairs if _extractable(a, b)]),
        loglikelihood=mean("loglikelihood", over="likelihood_known"),
        length=estimate(lambda s: s["other_tokens"] / s["tokens"]),
        cut=_surely(mean("cut")),
        tokens_per_round=estimate(
            lambda s: (1 + s["other_accepted"] / s["other_rounds"]) / (1 + s["accepted"] / s["rounds"])
        ),
        rounds=estimate(lambda s: s["other_rounds"] / s["rounds"]),
        seconds=estimate(lambda s: s["other_seconds"] / s["seconds"]),
        rounds_per_solved=estimate(
            lambda s: (s["other_scored_rounds"] / s["other_score"]) / (s["scored_rounds"] / s["score"])
        ),
        seconds_per_solved=estimate(
            lambda s: (s["other_scored_seconds"] / s["other_score"]) / (s["scored_seconds"] / s["score"])
        ),
    )


def score_change(pairs: Sequence[Pair], margin: float) -> ScoreChange | None:
    """The difference in score and its verdict, over the pairs that have a score; None if none has."""
    scores = _scores(pairs)
    if not scores:
        return None
    before, after = zip(*scores, strict=True)
    test = noninferiority_test(before, after, margin)
    return ScoreChange(
        verdict=test.verdict,
        pairs=len(scores),
        baseline=float(np.mean(before)),
        other=float(np.mean(after)),
        difference=_surely(mean_difference(pairs)),
        low=test.low,
        high=test.high,
        gains=test.gains,
        losses=test.losses,
        mcnemar_p=test.mcnemar_p,
        p_noninferior=test.p_noninferior,
        p_inferior=test.p_inferior,
        needed_items=test.needed_items,
    )


def mean_difference(pairs: Sequence[Pair]) -> Estimate | None:
    """Mean difference in score with its bootstrap interval, over the pairs that have a score."""
    gains = [after - before for before, after in _scores(pairs)]
    if not gains:
        return None
    tasks = [first.task for first, _ in pairs if first.score is not None]
    sums = ResampledSums.of({"gain": gains, "pairs": np.ones(len(gains))}, strata=tasks)
    interval = sums.interval(lambda s: s["gain"] / s["pairs"])
    return Estimate.of(interval) if interval else None


def _scores(pairs: Sequence[Pair]) -> list[tuple[float, float]]:
    return [(a.score, b.score) for a, b in pairs if a.score is not None and b.score is not None]


def _columns(pairs: Sequence[Pair], baseline_seconds: Sequence[float]) -> dict[str, list[float]]:
    """One row per pair; sums of these columns are all that the comparison needs."""

    def each(value: Callable[[Item, Item], float]) -> list[float]:
        return [float(value(first, second)) for first, second in pairs]

    control, other = ([pair[side] for pair in pairs] for side in (0, 1))
    columns = _arm_columns(control) | {f"other_{name}": v for name, v in _arm_columns(other).items()}
    return columns | {
        "seconds": list(baseline_seconds),
        "scored_seconds": [
            seconds * (pair[0].score is not None)
            for seconds, pair in zip(baseline_seconds, pairs, strict=True)
        ],
        "pairs": [1.0] * len(pairs),
        "cut": each(lambda a, b: _is_cut(b) - _is_cut(a)),
        "likelihood_known": each(_likelihood_known),
        "loglikelihood": each(_likelihood_gain),
    }


def _arm_columns(items: Sequence[Item]) -> dict[str, list[float]]:
    return {
        "score": [item.score or 0.0 for item in items],
        "scored_rounds": [float(item.rounds * (item.score is not None)) for item in items],
        "scored_seconds": [item.latency_s * (item.score is not None) for item in items],
        "tokens": [float(item.tokens) for item in items],
        "rounds": [float(item.rounds) for item in items],
        "accepted": [float(item.accepted) for item in items],
        "seconds": [item.latency_s for item in items],
    }


def _is_cut(item: Item) -> bool:
    return item.finish_reason == "length"


def _share(hits: Sequence[bool]) -> Estimate | None:
    """A share with Wilson's interval, which has a width where a bootstrap has none: at 0 and at 1."""
    if not hits:
        return None
    low, high = proportion_confint(sum(hits), len(hits), alpha=1 - CONFIDENCE, method="wilson")
    return Estimate(value=sum(hits) / len(hits), low=low, high=high)


def _extractable(first: Item, second: Item) -> bool:
    return first.extracted is not None or second.extracted is not None


def _likelihood_known(first: Item, second: Item) -> bool:
    return first.loglikelihood is not None and second.loglikelihood is not None


def _likelihood_gain(first: Item, second: Item) -> float:
    if first.loglikelihood is None or second.loglikelihood is None:
        return 0.0
    return second.loglikelihood - first.loglikelihood


def _surely(estimate: Estimate | None) -> Estimate:
    """A mean over the pairs is always defined: there is at least one."""
    assert estimate is not None
    return estimate
