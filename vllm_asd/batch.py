"""The rows of a batch and of one step, in the order in which the runner brings them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.accounts import BatchAccounts, StepAccounts
from vllm_asd.guard import GuardedRows
from vllm_asd.kernels import Outcome, RowLimits


class CoupledRows(NamedTuple):
    """Which of a step's R rows are sampled requests that ASD verifies against a sample.

    Attributes:
        flags: [R], on the host.
        mask: [R] bool, on the device.
    """

    flags: list[bool]
    mask: Tensor

    def rows(self, first: int, number: int) -> CoupledRows | None:
        """Some consecutive rows; None when none of them is coupled."""
        flags = self.flags[first : first + number]
        return CoupledRows(flags, self.mask[first : first + number]) if any(flags) else None


class Batch(NamedTuple):
    """What R rows keep from step to step, until the batch changes or a request comes or goes.

    Attributes:
        request_ids: In batch order.
        known: The same, None for those that have no entry, and for those that vLLM samples.
        accounts: Their accounts.
        limits: What the rule knows of them, but for guards, phases and scope.
        coupled: None when no row is.
        guard_slots: [R] int64, or None when no row is guarded.
    """

    request_ids: list[str]
    known: list[str | None]
    accounts: BatchAccounts
    limits: RowLimits
    coupled: CoupledRows | None
    guard_slots: Tensor | None


@dataclass
class Step:
    """The step under way.

    Attributes:
        batch: Its rows.
        accounts: What they decide by and pay with.
        guarded: Their guards as the step begins; None when no row has one.
        limits: What the rule knows about them; its scope is that of each chunk.
        outcome: The decisions; None until drafts are verified.
        decided: Rows decided so far.
    """

    batch: Batch
    accounts: StepAccounts
    guarded: GuardedRows | None
    limits: RowLimits
    outcome: Outcome | None = None
    decided: int = 0


@dataclass(frozen=True)
class Emitted:
    """What a step emitted.

    Attributes:
        ids: [R, W] int, in order. After ``num_tokens`` of a row anything; without it, -1.
        num_tokens: [R] int32, or None.
        discarded: [R] bool, rows whose tokens vLLM throws away (partial prefills), or None.
    """

    ids: Tensor
    num_tokens: Tensor | None = None
    discarded: Tensor | None = None

    @cached_property
    def padded(self) -> Tensor:
        """[R, W] int, padded with -1."""
        ids = self.ids
        if self.num_tokens is not None:
            column = torch.arange(ids.shape[1], device=ids.device)
            ids = torch.where(column < self.num_tokens.unsqueeze(1), ids, -1)
        return ids if self.discarded is None else ids.masked_fill(self.discarded.unsqueeze(1), -1)

    @cached_property
    def counts(self) -> Tensor:
        """[R] int32, tokens per row."""
        if self.num_tokens is not None and self.discarded is None:
            return self.num_tokens
        # As V2 counts them: another type, after a step taken back, would compile the charge anew.
        return (self.padded >= 0).sum(1, dtype=torch.int32)

    def first(self, row: int, num_tokens: int) -> Emitted:
        """The first tokens of one row, as a step of one row.

        Not of a discarded row, of which none is kept: by now vLLM has overwritten ``discarded`` on V1. The
        result has what this step has: a kernel would be compiled anew for another combination.
        """
        ids = self.ids[row : row + 1]
        if self.num_tokens is not None:
            ids = Emitted(ids, self.num_tokens[row : row + 1]).padded
        column = torch.arange(ids.shape[1], device=ids.device)
        one = Emitted(ids.masked_fill(column >= num_tokens, -1))
        discarded = None if self.discarded is None else torch.zeros_like(self.discarded[row : row + 1])
        return Emitted(one.ids, None if self.num_tokens is None else one.counts, discarded)
