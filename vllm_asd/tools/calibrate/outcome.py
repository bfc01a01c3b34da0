"""What one setting came to against budget 0 on the same prompts, and whether the user's caps allow it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vllm_asd.tools.answers import Answer
from vllm_asd.tools.calibrate.grid import Setting
from vllm_asd.tools.paired import parting, round_gain


@dataclass(frozen=True)
class Outcome:
    """Figures of one setting.

    Attributes:
        setting: The limits.
        prompts: Compared pairs.
        tokens: Of the relaxed answers together.
        gain: Tokens per verification round over the control's, and the ends of its 95% interval.
        regret: Nats charged per 100 tokens.
        exceptions: Tokens per 100 that are not what the target would have said at that place.
        parting: Median token at which an answer leaves the control's; one that never does counts its length.
        changed: Share of answers that differ from the control's.
        exhausted: Share of answers that were refused a draft token by the budget alone.
        length: Mean length over the control's.
        ran: The setting whose answers these are: one with a stricter budget, where that never ran out.
    """

    setting: Setting
    prompts: int
    tokens: int
    gain: tuple[float, float, float]
    regret: float
    exceptions: float
    parting: float
    changed: float
    exhausted: float
    length: float
    ran: Setting


@dataclass(frozen=True)
class Caps:
    """What the user allows; each in the unit of the `Outcome` field it caps."""

    regret: float
    exceptions: float
    parting: float = 0.0

    def excess(self, outcome: Outcome) -> float:
        """By which share an outcome lies beyond the cap that it breaks most; 0 where it keeps them all."""
        # An outcome that parts at token 0 is beyond any cap on the parting.
        parts = self.parting / max(outcome.parting, 1e-9) if self.parting else 0.0
        ratios = (outcome.regret / self.regret, outcome.exceptions / self.exceptions, parts)
        return max(0.0, *(ratio - 1 for ratio in ratios))


def compare(setting: Setting, control: Sequence[Answer], relaxed: Sequence[Answer]) -> Outcome:
    """Compare one answer per prompt of either arm, in the same order.

    Raises:
        ValueError: An arm has no verification round.
    """
    pairs = list(zip(control, relaxed, strict=True))
    tokens = sum(answer.tokens for answer in relaxed)
    return Outcome(
        setting=setting,
        prompts=len(pairs),
        tokens=tokens,
        gain=round_gain(control, relaxed),
        regret=100 * sum(answer.regret_spent for answer in relaxed) / tokens,
        exceptions=100 * sum(answer.exceptions for answer in relaxed) / tokens,
        parting=float(np.median([parting(c, r) for c, r in pairs])),
        changed=float(np.mean([c.digest != r.digest for c, r in pairs])),
        exhausted=float(np.mean([answer.exhausted_at is not None for answer in relaxed])),
        length=tokens / sum(answer.tokens for answer in control),
        ran=setting,
    )


def measure_ledgers(
    settings: Sequence[Setting], run: Callable[[Sequence[Setting]], Sequence[Outcome]]
) -> list[Outcome]:
    """Run settings, except those that differ from one that ran by a budget that can't have mattered.

    A budget that refused nothing would have refused nothing had it been larger: the answers are the same.

    Args:
        settings: To be measured.
        run: Measures those that have to run.

    Returns:
        An outcome for each, in the same order.
    """
    strictest = [s for s in settings if not any(o is not s and o.is_stricter_ledger_of(s) for o in settings)]
    ran = {outcome.setting: outcome for outcome in run(strictest)}
    known = dict(ran)
    for setting in settings:
        enough = (o for o in ran.values() if not o.exhausted and o.setting.is_stricter_ledger_of(setting))
        if setting not in known and (outcome := next(enough, None)):
            known[setting] = replace(outcome, setting=setting)
    known.update((o.setting, o) for o in run([s for s in settings if s not in known]))
    return [known[setting] for setting in settings]
