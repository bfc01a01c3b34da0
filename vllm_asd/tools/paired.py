"""Figures of two arms over the same prompts, a control and a relaxed one, that several protocols share."""

from collections.abc import Sequence

from vllm_asd.tools.answers import Answer
from vllm_asd.tools.statistics.resampling import ResampledSums


def tokens_per_round(answers: Sequence[Answer]) -> float:
    """Tokens that one verification round yields, its own included."""
    rounds = sum(answer.rounds for answer in answers)
    return (rounds + sum(answer.accepted for answer in answers)) / rounds


def round_gain(control: Sequence[Answer], relaxed: Sequence[Answer]) -> tuple[float, float, float]:
    """Ratio of tokens per round, relaxed over control; prompts are resampled, both arms of each together.

    Args:
        control: One answer per prompt.
        relaxed: The same prompts in the same order.

    Returns:
        The ratio and the ends of its 95% bootstrap interval.

    Raises:
        ValueError: An arm has no verification round.
    """
    sums = ResampledSums.of(
        {
            "control_rounds": [answer.rounds for answer in control],
            "control_tokens": [answer.rounds + answer.accepted for answer in control],
            "relaxed_rounds": [answer.rounds for answer in relaxed],
            "relaxed_tokens": [answer.rounds + answer.accepted for answer in relaxed],
        }
    )
    gain = sums.interval(
        lambda s: (s["relaxed_tokens"] / s["relaxed_rounds"]) / (s["control_tokens"] / s["control_rounds"])
    )
    if gain is None or gain.low is None or gain.high is None:
        raise ValueError("an arm has no verification round: does the server draft at all?")
    return gain.value, gain.low, gain.high


def parting(left: Answer, right: Answer) -> int:
    """The first position at which two answers differ; the shorter one's length where none does."""
    pairs = zip(left.token_ids, right.token_ids, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return min(left.tokens, right.tokens) if same is None else same
