"""Long answers, cut into windows: does the gain stay, or is the budget gone?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval.frontier.arms import STRICT
from eval.frontier.curves import Prompts
from eval.frontier.loops import repeated_share
from eval.frontier.runs import Run
from vllm_asd.tools.statistics.resampling import Floats, Interval, ResampledSums, Sums

WINDOW_TOKENS = 256
# Above, a window counts as a loop, in which every draft matches and nothing can be gained.
MOST_REPEATED = 0.3


@dataclass(frozen=True)
class Window:
    """One arm in one window.

    Attributes:
        arm: Its name.
        first_token: Where the window begins.
        gain: Tokens per round over the control's in the same window, less 1.
        same_blocks: Tokens per round over strict's in the very same blocks, less 1.
        regret: Nats per token.
        repeated: Share of repeated 4-grams within the window, mean.
        fresh: Answers in which that share is below :data:`MOST_REPEATED`.
        fresh_blocks: `same_blocks` over those.
    """

    arm: str
    first_token: int
    gain: Interval | None
    same_blocks: Interval | None
    regret: float
    repeated: float
    fresh: int
    fresh_blocks: Interval | None


def windows(prompts: Prompts, arms: Sequence[str]) -> list[Window]:
    """All arms, window by window; a last window that is not whole is left out.

    A round counts where its first token stands, with all of its tokens.

    Args:
        prompts: Task and id to arm to run; all answers of one length.
        arms: The names, the control's among them.
    """
    length = min(run.tokens for found in prompts.values() for run in found.values())
    return [
        _window(prompts, arm, start, start + WINDOW_TOKENS)
        for start in range(0, length - WINDOW_TOKENS + 1, WINDOW_TOKENS)
        for arm in arms
    ]


def _window(prompts: Prompts, arm: str, start: int, end: int) -> Window:
    rows = [_sums(found, arm, start, end) for found in prompts.values()]
    sums = _resampled(rows)
    runs = [found[arm] for found in prompts.values()]
    repeated = [repeated_share(run.token_ids[start:end]) for run in runs]
    fresh = [row for row, share in zip(rows, repeated, strict=True) if share < MOST_REPEATED]

    def gain(s: Sums) -> Floats:
        return (s["emitted"] / s["rounds"]) / (s["control emitted"] / s["control rounds"]) - 1

    def same_blocks(s: Sums) -> Floats:
        return s["emitted"] / s["strict"] - 1

    return Window(
        arm=arm,
        first_token=start,
        gain=sums.interval(gain),
        same_blocks=sums.interval(same_blocks),
        regret=sum(r for run in runs for at, r in run.exceptions if start <= at < end)
        / (len(runs) * (end - start)),
        repeated=float(np.mean(repeated)),
        fresh=len(fresh),
        fresh_blocks=_resampled(fresh).interval(same_blocks) if fresh else None,
    )


def _resampled(rows: Sequence[Mapping[str, float]]) -> ResampledSums:
    return ResampledSums.of({name: [row[name] for row in rows] for name in rows[0]})


def _sums(found: Mapping[str, Run], arm: str, start: int, end: int) -> dict[str, float]:
    rounds, emitted, strict = _rounds(found[arm], start, end)
    control_rounds, control_emitted, _ = _rounds(found[STRICT], start, end)
    return {
        "rounds": rounds,
        "emitted": emitted,
        "strict": strict,
        "control rounds": control_rounds,
        "control emitted": control_emitted,
    }


def _rounds(run: Run, start: int, end: int) -> tuple[int, int, int]:
    """Rounds that begin in a window, the tokens they emitted, and those that strict would have emitted."""
    position, rounds, tokens, strict_tokens = run.emitted[0], 0, 0, 0
    strict = run.strict or [emitted - 1 for emitted in run.emitted[1:]]
    for emitted, kept in zip(run.emitted[1:], strict, strict=False):
        if start <= position < end:
            rounds += 1
            tokens += emitted
            # The last round may have been cut short.
            strict_tokens += min(emitted, kept + 1)
        position += emitted
    return rounds, tokens, strict_tokens
