"""The rows of a batch and of one step, in the order in which the runner brings them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vllm_asd.accounts import BatchAccounts, StepAccounts
from vllm_asd.guard import GuardedRows
from vllm_asd.kernels import Outcome


class CoupledRows(NamedTuple):
    """Which of a step's R rows are sampled requests that ASD verifies against a sample.

    Attributes:
        flags: [R], on the host.
        mask: [R] bool, on the device.
    """

    flags: list[bool]
    mask: Tensor


class Batch(NamedTuple):
    """What R rows keep from step to step, until the batch changes or a request comes or goes.

    Attributes:
        request_ids: In batch order.
        known: The same, None for those that have no entry.
        accounts: Their accounts.
        protected_ids: [R, S] int64, padded with -1.
        coupled: None when no row is.
        guard_slots: [R] int64, or None when no row is guarded.
    """

    request_ids: list[str]
    known: list[str | None]
    accounts: BatchAccounts
    protected_ids: Tensor
    coupled: CoupledRows | None
    guard_slots: Tensor | None


class StepRows(NamedTuple):
    """Rows of the step under way, all or some.

    Attributes:
        known: Request ids, None for those that have no entry.
        accounts: What they decide by and pay with.
        protected_ids: [R, S] int64, padded with -1.
        coupled: None when no row is.
    """

    known: list[str | None]
    accounts: StepAccounts
    protected_ids: Tensor
    coupled: CoupledRows | None

    def rows(self, first: int, number: int) -> StepRows:
        """Some consecutive rows.

        Raises:
            RuntimeError: The step does not have them.
        """
        if first == 0 and number == len(self.known):
            return self
        if first + number > len(self.known):
            raise RuntimeError(f"drafts for {number} rows from row {first} of a step of {len(self.known)}")
        chunk = slice(first, first + number)
        return StepRows(
            known=self.known[chunk],
            accounts=self.accounts.rows(chunk),
            protected_ids=self.protected_ids[chunk],
            coupled=self.coupled and CoupledRows(self.coupled.flags[chunk], self.coupled.mask[chunk]),
        )


@dataclass
class Step:
    """The step under way, and the decisions so far: one outcome per chunk of rows, in order."""

    rows: StepRows
    guarded: GuardedRows | None
    chunks: list[Outcome] = field(default_factory=list)
    details: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Batch, accounts: StepAccounts, guarded: GuardedRows | None) -> Step:
        """Start a step of a batch."""
        return cls(StepRows(batch.known, accounts, batch.protected_ids, batch.coupled), guarded)

    @property
    def outcome(self) -> Outcome | None:
        """The decisions for all rows; None when the step verifies no drafts."""
        if len(self.chunks) < 2:
            return self.chunks[0] if self.chunks else None
        return Outcome(*(torch.cat(columns) for columns in zip(*self.chunks, strict=True)))

    @property
    def detail(self) -> Tensor | None:
        """[R, 2 * E], what the level "detailed" adds; None at the others."""
        return torch.cat(self.details) if self.details else None


def padded_ids(sets: Sequence[np.ndarray]) -> np.ndarray:
    """Pad R sets of ids with -1: [R, S] int64.

    In numpy: a client may send its whole vocabulary as stop tokens, and every row is padded to that.
    """
    padded = np.full((len(sets), max(map(len, sets))), -1, dtype=np.int64)
    for row, ids in zip(padded, sets, strict=True):
        row[: len(ids)] = ids
    return padded
