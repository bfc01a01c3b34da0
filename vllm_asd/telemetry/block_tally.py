"""What of a step's decisions reached the responses: the figures that reports and counters share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vllm_asd.kernels.outcome import Column
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.step_report import StepBlocks

STOP_LABELS = tuple(reason.name.lower() for reason in StopReason)


class KeptExceptions(NamedTuple):
    """The exceptions of a step that reached the responses, by row and then by position.

    Attributes:
        row: [X] int64, the block's row.
        position: [X] int64, place in the block, from 0.
        regret: [X] float64, nats.
    """

    row: np.ndarray
    position: np.ndarray
    regret: np.ndarray


class BlockTally(NamedTuple):
    """A step's blocks after stop conditions cut them; under shadow, what would have been kept.

    Attributes:
        accepted: [M] float64, draft tokens kept.
        strict_accepted: [M] float64, draft tokens that strict verification keeps of the same block.
        reused: [M] float64, kept matches behind the first exception.
        num_exceptions: [M] int64, kept exceptions.
        regret: [M] float64, nats, of the kept exceptions.
        spent: [M] float64, nats that the block's account has paid so far, for what was kept.
        out_of_budget: [M] bool, whether the next draft token was refused for want of budget alone.
        exceptions: The kept exceptions themselves.
    """

    accepted: np.ndarray
    strict_accepted: np.ndarray
    reused: np.ndarray
    num_exceptions: np.ndarray
    regret: np.ndarray
    spent: np.ndarray
    out_of_budget: np.ndarray
    exceptions: KeptExceptions

    @classmethod
    def of(cls, blocks: StepBlocks, num_kept: np.ndarray) -> BlockTally:
        """Cut blocks to what was kept.

        Args:
            blocks: What the worker decided.
            num_kept: [M] int64, tokens of each block in the response, the target's own last one included; at
                least 1.
        """
        decided = blocks.column(Column.ACCEPTED)
        # Under shadow the block's tail was never emitted: what would have been kept is what is counted.
        is_shadow = blocks.column(Column.SHADOW) != 0
        reach = np.where(is_shadow, blocks.column(Column.NUM_DRAFT) + 1, num_kept)
        accepted = np.minimum(decided, reach)
        exceptions, cut_off = _exceptions(blocks, accepted)
        num_rows = len(accepted)
        num_exceptions = np.bincount(exceptions.row, minlength=num_rows)
        return cls(
            accepted=accepted,
            strict_accepted=np.minimum(blocks.column(Column.STRICT_ACCEPTED), reach),
            reused=_reused(accepted, exceptions, num_exceptions),
            num_exceptions=num_exceptions,
            regret=np.bincount(exceptions.row, exceptions.regret, num_rows),
            spent=blocks.column(Column.SPENT) - np.bincount(cut_off.row, cut_off.regret, num_rows),
            out_of_budget=(blocks.column(Column.STOP) == StopReason.BUDGET) & (decided < reach),
            exceptions=exceptions,
        )


def _exceptions(blocks: StepBlocks, accepted: np.ndarray) -> tuple[KeptExceptions, KeptExceptions]:
    """List the exceptions that were kept, and those behind a stop."""
    # Most blocks have none.
    rows = np.flatnonzero(blocks.column(Column.EXCEPTIONS))
    regret = blocks.exception_regret[rows]
    index, position = np.nonzero(regret >= 0)
    found = KeptExceptions(rows[index], position, regret[index, position])
    is_kept = position < accepted[found.row]
    if is_kept.all():
        return found, KeptExceptions(*(values[:0] for values in found))
    return KeptExceptions(*(values[is_kept] for values in found)), KeptExceptions(
        *(values[~is_kept] for values in found)
    )


def _reused(accepted: np.ndarray, exceptions: KeptExceptions, num_exceptions: np.ndarray) -> np.ndarray:
    reused = np.zeros_like(accepted)
    row, index = np.unique(exceptions.row, return_index=True)
    reused[row] = accepted[row] - exceptions.position[index] - num_exceptions[row]
    return reused
