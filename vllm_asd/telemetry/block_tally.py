"""What of a block's decisions reached the response: the one figure that reports and counters share."""

from __future__ import annotations

from typing import NamedTuple

from vllm_asd.policy import StopReason
from vllm_asd.telemetry.step_report import BlockException, BlockReport

STOP_LABELS = tuple(reason.name.lower() for reason in StopReason)


class BlockTally(NamedTuple):
    """One verification block after stop conditions cut it; under shadow, what would have been kept.

    Attributes:
        accepted: Draft tokens kept.
        strict_accepted: Draft tokens that strict verification keeps of the same block.
        reused: Kept matches behind the first exception.
        exceptions: The kept exceptions, in order.
        stop: Label of what ended the block.
        out_of_budget: Whether the next draft token was refused for want of budget alone.
    """

    accepted: int
    strict_accepted: int
    reused: int
    exceptions: tuple[BlockException, ...]
    stop: str
    out_of_budget: bool

    @property
    def regret(self) -> float:
        """Nats, of the kept exceptions."""
        return sum(exception.regret for exception in self.exceptions)

    @classmethod
    def of(cls, block: BlockReport, num_emitted: int) -> BlockTally:
        """Cut a block to what was emitted.

        Args:
            block: What the worker decided.
            num_emitted: Tokens of the block in the response, the target's own last one included; at least 1.
        """
        # Under shadow the block's tail was never emitted: what would have been kept is what is counted.
        reach = block.num_draft + 1 if block.shadow else num_emitted
        accepted = min(block.accepted, reach)
        exceptions = tuple(exception for exception in block.exceptions if exception.position < accepted)
        reused = accepted - exceptions[0].position - len(exceptions) if exceptions else 0
        return cls(
            accepted=accepted,
            strict_accepted=min(block.strict_accepted, reach),
            reused=reused,
            exceptions=exceptions,
            stop=STOP_LABELS[block.stop],
            out_of_budget=block.stop == StopReason.BUDGET and block.accepted < reach,
        )
