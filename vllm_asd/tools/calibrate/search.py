"""Successive halving: many settings on few prompts, the better third on more, the best few on all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from vllm_asd.tools.calibrate.grid import Setting
from vllm_asd.tools.calibrate.outcome import Caps, Outcome

Measure = Callable[[Sequence[Setting], int], Sequence[Outcome]]

_KEEP = 3
_SHARES = (1 / 6, 1 / 2, 1)
_LEAST_PROMPTS = 4
# A few prompts tell a rate to about a quarter.
_SLACK = 0.25


class NothingMeetsCaps(ValueError):
    """Every setting breaks a cap; `nearest` breaks it least."""

    def __init__(self, nearest: Outcome) -> None:
        """Say so in one line."""
        super().__init__(
            f"no setting keeps within the caps; the nearest, {nearest.setting.arm}, spends "
            f"{nearest.regret:.2f} nats and {nearest.exceptions:.2f} exceptions per 100 tokens "
            f"and parts at token {nearest.parting:.0f}: raise the caps or lower --gates, --budgets"
        )
        self.nearest = nearest


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        best: The setting with the largest gain among those measured on all prompts that keep within the caps.
        tried: Every setting's last outcome: the more prompts, the longer it stayed in.
    """

    best: Outcome
    tried: tuple[Outcome, ...]


def rungs(settings: int, prompts: int) -> list[tuple[int, int]]:
    """How many settings run on how many prompts, rung by rung; the last has all prompts."""
    sizes = sorted({min(prompts, max(_LEAST_PROMPTS, round(prompts * share))) for share in _SHARES})
    return [(max(1, ceil(settings / _KEEP**rung)), size) for rung, size in enumerate(sizes)]


def answers_needed(settings: int, prompts: int) -> int:
    """Relaxed answers that the search asks for, unless no finalist keeps within the caps."""
    before = 0
    total = 0
    for kept, size in rungs(settings, prompts):
        total += kept * (size - before)
        before = size
    return total


def search(settings: Sequence[Setting], prompts: int, caps: Caps, measure: Measure) -> Found:
    """Find the setting that gains most within the caps.

    Args:
        settings: To be tried.
        prompts: How many there are.
        caps: What is allowed.
        measure: Settings and a number of prompts to their outcomes on the first so many.

    Raises:
        NothingMeetsCaps: After every setting was measured on all prompts.
    """
    last: dict[Setting, Outcome] = {}
    order = list(settings)
    *halving, (finalists, all_prompts) = rungs(len(settings), prompts)
    for kept, size in halving:
        last.update((outcome.setting, outcome) for outcome in measure(order[:kept], size))
        order = _by_promise([last[setting] for setting in order[:kept]], caps) + order[kept:]
    # Should no finalist keep within the caps, the next best have their turn.
    for start in range(0, len(order), finalists):
        last.update((o.setting, o) for o in measure(order[start : start + finalists], all_prompts))
        within = [o for o in last.values() if o.prompts == all_prompts and not caps.excess(o)]
        if within:
            best = max(within, key=lambda outcome: outcome.gain[0])
            return Found(best, tuple(last[setting] for setting in settings))
    raise NothingMeetsCaps(min(last.values(), key=caps.excess))


def _by_promise(outcomes: Sequence[Outcome], caps: Caps) -> list[Setting]:
    """Best first; those that lie a little beyond a cap, which may be chance, alternate with those within.

    Those that are another's equal so far come last: the equal has the stricter budget.
    """
    own = [o for o in outcomes if o.ran == o.setting]
    equals = [o for o in outcomes if o.ran != o.setting]
    within = sorted((o for o in own if not caps.excess(o)), key=lambda o: -o.gain[0])
    near = sorted((o for o in own if 0 < caps.excess(o) <= _SLACK), key=lambda o: -o.gain[0])
    far = sorted((o for o in own if caps.excess(o) > _SLACK), key=caps.excess)
    turns = [o for turn in range(len(own)) for o in (*within[turn : turn + 1], *near[turn : turn + 1])]
    return [outcome.setting for outcome in (*turns, *far, *equals)]
