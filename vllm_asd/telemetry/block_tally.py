"""What of a step's decisions reached the responses: the figures that reports and counters share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vllm_asd.kernels.outcome import Column
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.counters import Counter
from vllm_asd.telemetry.step_report import StepBlocks

STOP_LABELS = tuple(reason.name.lower() for reason in StopReason)


# After the counters, how many blocks each reason stopped.
FIRST_STOP = len(Counter)
NUM_SUMS = FIRST_STOP + len(STOP_LABELS)


class Exceptions(NamedTuple):
    """Exceptions of a step, by row and then by position.

    Attributes:
        row: [X] int64, the block's row.
        position: [X] int64, place in the block, from 0.
        regret: [X] float64, nats.
    """

    row: np.ndarray
    position: np.ndarray
    regret: np.ndarray

    def pick(self, which: np.ndarray) -> Exceptions:
        """Those that a [X] bool mask says."""
        return self if which.all() else Exceptions(*(values[which] for values in self))


class BlockTally(NamedTuple):
    """A step's blocks after stop conditions cut them; under shadow, what would have been kept.

    Attributes:
        sums: [M, NUM_SUMS] float64: what the block adds to each :class:`Counter` (to those of requests: see
            :func:`vllm_asd.telemetry.request_totals.add_blocks`), then 1 at its stop, 0 at the others.
        spent: [M] float64, nats that the block's account has paid so far, for what was kept.
        out_of_budget: [M] bool, whether the next draft token was refused for want of budget alone.
        exceptions: The exceptions that were kept.
    """

    sums: np.ndarray
    spent: np.ndarray
    out_of_budget: np.ndarray
    exceptions: Exceptions

    def sum(self, counter: Counter) -> np.ndarray:
        """[M] float64, a view."""
        values: np.ndarray = self.sums[:, counter]
        return values

    @classmethod
    def of(cls, blocks: StepBlocks, num_kept: np.ndarray) -> BlockTally:
        """Cut blocks to what was kept.

        Args:
            blocks: What the worker decided.
            num_kept: [M] int64, tokens of each block in the response, the target's own last one included; at
                least 1.
        """
        decided, stop = blocks.column(Column.ACCEPTED), blocks.column(Column.STOP)
        # Under shadow the block's tail was never emitted: what would have been kept is what is counted.
        is_shadow = blocks.column(Column.SHADOW) != 0
        reach = np.where(is_shadow, blocks.column(Column.NUM_DRAFT) + 1, num_kept)
        accepted = np.minimum(decided, reach)
        sums = np.zeros((len(accepted), NUM_SUMS))
        sums[:, Counter.ACCEPTED_TOKENS] = accepted
        np.minimum(blocks.column(Column.STRICT_ACCEPTED), reach, out=sums[:, Counter.STRICT_ACCEPTED_TOKENS])
        sums[np.arange(len(accepted)), FIRST_STOP + stop.astype(np.int64)] = 1
        # Most blocks have no exception.
        found = _exceptions(blocks, np.flatnonzero(blocks.column(Column.EXCEPTIONS)))
        is_kept = found.position < accepted[found.row]
        kept = found.pick(is_kept)
        _add_exceptions(sums, kept)
        spent = blocks.column(Column.SPENT).copy()
        if len(kept.row) < len(found.row):
            cut_off = found.pick(~is_kept)
            spent -= np.bincount(cut_off.row, cut_off.regret, len(spent))
        return cls(sums, spent, (stop == StopReason.BUDGET) & (decided < reach), kept)


def _exceptions(blocks: StepBlocks, rows: np.ndarray) -> Exceptions:
    regret = blocks.exception_regret[rows]
    index, position = np.nonzero(regret >= 0)
    return Exceptions(rows[index], position, regret[index, position])


def _add_exceptions(sums: np.ndarray, kept: Exceptions) -> None:
    """Set the figures that only blocks with exceptions have."""
    if not len(kept.row):
        return
    sums[:, Counter.EXCEPTIONS] = np.bincount(kept.row, minlength=len(sums))
    sums[:, Counter.REGRET] = np.bincount(kept.row, kept.regret, len(sums))
    # Strict ends before the first exception: what was kept beyond is exceptions and reused matches.
    sums[:, Counter.REUSED_TOKENS] = (
        sums[:, Counter.ACCEPTED_TOKENS]
        - sums[:, Counter.STRICT_ACCEPTED_TOKENS]
        - sums[:, Counter.EXCEPTIONS]
    )
