"""The decisions of one step on their way from the device to the host and on to the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vllm_asd.kernels.outcome import NUM_SCALARS, Column, Outcome

_NUM_DRAFT = int(Column.NUM_DRAFT)  # numpy takes a plain integer faster than a member of an IntEnum


class StepBlocks(NamedTuple):
    """What the draft blocks of one step did, on the host; cheap to pickle.

    Attributes:
        request_ids: M ids, of the rows that have an entry and verified at least one draft token.
        table: [M, NUM_SCALARS + 2 * K + 2 * E] float64, as :attr:`Outcome.table`.
        width: K.
    """

    request_ids: list[str]
    table: np.ndarray
    width: int

    def take(self, rows: np.ndarray | slice) -> StepBlocks:
        """Some of the rows: by index (a copy) or consecutive ones (a view)."""
        picked = range(len(self.request_ids))[rows] if isinstance(rows, slice) else rows.tolist()
        return StepBlocks([self.request_ids[row] for row in picked], self.table[rows], self.width)

    def column(self, column: Column) -> np.ndarray:
        """[M] float64, a view."""
        values: np.ndarray = self.table[:, column]
        return values

    @property
    def exception_regret(self) -> np.ndarray:
        """[M, K] float64, nats; -1 where no exception was kept. A view."""
        regret: np.ndarray = self.table[:, NUM_SCALARS : NUM_SCALARS + self.width]
        return regret

    @property
    def target_ids(self) -> np.ndarray:
        """[M, K] float64 holding token ids; -1 where no exception was kept. A view."""
        ids: np.ndarray = self.table[:, NUM_SCALARS + self.width : NUM_SCALARS + 2 * self.width]
        return ids

    @property
    def details(self) -> np.ndarray:
        """[M, 2 * E] float64: each exception's kept token in order, then the target's log-probability."""
        details: np.ndarray = self.table[:, NUM_SCALARS + 2 * self.width :]
        return details


@dataclass
class StepReport:
    """A non-blocking copy in flight; :meth:`resolve` is for whoever already waits for the sampled tokens.

    Attributes:
        request_ids: R ids; None for rows that are not to be reported.
        host: [R, ...] float64, :attr:`Outcome.table` on the host.
        width: K.
        ready: When the copy has ended; None on the CPU, where there is none.
    """

    request_ids: Sequence[str | None]
    host: Tensor
    width: int
    ready: torch.Event | None

    @classmethod
    def start(cls, request_ids: Sequence[str | None], outcome: Outcome) -> StepReport:
        """Send the outcome off, in one copy.

        Args:
            request_ids: R ids; None for rows that are not to be reported.
            outcome: The step's decisions, settled. Nothing writes to its table any more.
        """
        table = outcome.table
        if table.device.type == "cpu":
            return cls(request_ids, table, outcome.width, None)
        host = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
        ready = torch.Event(table.device)
        host.copy_(table, non_blocking=True)
        ready.record()
        return cls(request_ids, host, outcome.width, ready)

    def resolve(self) -> StepBlocks:
        """Wait for the copy and pick the rows that verified at least one draft."""
        if self.ready is not None:
            self.ready.synchronize()
        table, ids = self.host.numpy(), self.request_ids
        num_draft = table[:, _NUM_DRAFT].tolist()
        if self.ready is None and all(num_draft) and None not in ids:
            # The usual case on the CPU, and no copy: nothing writes to the table any more.
            return StepBlocks(ids, table, self.width)  # type: ignore[arg-type]
        rows = [row for row, i in enumerate(ids) if i is not None and num_draft[row] > 0]
        # A copy: pinned memory goes back to PyTorch's allocator with `host`.
        return StepBlocks([ids[row] for row in rows], table[rows], self.width)  # type: ignore[misc]
