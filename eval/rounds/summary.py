"""From answers to figures: per data set and pooled, with intervals over prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_asd.tools.answers import Answer
from vllm_asd.tools.paired import parting, round_gain, tokens_per_round


@dataclass(frozen=True)
class Summary:
    """What one data set showed.

    Attributes:
        task: Data set, or "all".
        prompts: Compared pairs.
        strict: Tokens per verification round under budget 0 (the round's own token included).
        asd: The same under the server's limits.
        gain: Their ratio, with a 95% bootstrap interval over prompts.
        counterfactual: Tokens per round relaxed over what strict would have kept of the very same blocks.
        exceptions_per_100_tokens: Kept tokens that are not the target's argmax.
        regret_per_answer: Nats charged, mean.
        exhausted: Share of answers that used their budget up.
        changed: Share of answers whose tokens differ from the control's.
        changed_by_itself: The same between the two controls.
        length_ratio: Mean length relaxed over strict.
        median_divergence: Token at which changed answers part from the control, median.
    """

    task: str
    prompts: int
    strict: float
    asd: float
    gain: tuple[float, float, float]
    counterfactual: float
    exceptions_per_100_tokens: float
    regret_per_answer: float
    exhausted: float
    changed: float
    changed_by_itself: float
    length_ratio: float
    median_divergence: float | None


def summarize(answers: Sequence[Answer], task: str | None = None) -> Summary:
    """Compare the arms over the prompts that have all of them.

    Args:
        answers: Of any tasks.
        task: Restrict to this one; None pools.

    Raises:
        ValueError: No prompt has all arms.
    """
    by_prompt: dict[tuple[str, str], dict[str, Answer]] = {}
    for answer in answers:
        if task is None or answer.task == task:
            by_prompt.setdefault((answer.task, answer.id), {})[answer.arm] = answer
    rows = [arms for arms in by_prompt.values() if len(arms) == 3]
    if not rows:
        raise ValueError(f"no prompt of {task or 'any task'} has answers in all arms")
    strict, asd, again = ([row[arm] for row in rows] for arm in ("strict", "asd", "strict-again"))
    tokens = sum(answer.tokens for answer in asd)
    relaxed = [answer for answer in asd if answer.strict_accepted is not None]
    rounds = sum(answer.rounds for answer in relaxed)
    partings = [parting(s, a) for s, a in zip(strict, asd, strict=True) if s.digest != a.digest]
    return Summary(
        task=task or "all",
        prompts=len(rows),
        strict=tokens_per_round(strict),
        asd=tokens_per_round(asd),
        gain=round_gain(strict, asd),
        counterfactual=tokens_per_round(relaxed)
        / ((rounds + sum(answer.strict_accepted or 0 for answer in relaxed)) / rounds),
        exceptions_per_100_tokens=100 * sum(answer.exceptions for answer in asd) / tokens,
        regret_per_answer=float(np.mean([answer.regret_spent for answer in asd])),
        exhausted=float(np.mean([answer.exhausted_at is not None for answer in asd])),
        changed=len(partings) / len(rows),
        changed_by_itself=float(np.mean([s.digest != g.digest for s, g in zip(strict, again, strict=True)])),
        length_ratio=tokens / sum(answer.tokens for answer in strict),
        median_divergence=float(np.median(partings)) if partings else None,
    )
