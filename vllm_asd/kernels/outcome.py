"""What one verification step decides: one table, a row per request, which kernels fill and reports read."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor


class Column(IntEnum):
    """The scalars at the head of a row; counts are draft tokens, amounts are nats."""

    NUM_DRAFT = 0  # valid draft tokens
    ACCEPTED = 1  # kept (in shadow: that would have been kept)
    STRICT_ACCEPTED = 2  # what strict verification keeps of the same block
    EXCEPTIONS = 3  # kept tokens that are not the target's argmax
    REUSED = 4  # kept matches after the first exception
    STOP = 5  # vllm_asd.policy.StopReason
    CHARGED = 6  # regret of the exceptions
    SPENT = 7  # by the row's account so far, this step included; written when the step is settled
    SHADOW = 8  # 1 when the exceptions are only counted, not emitted
    THINKING = 9  # 1 when the block began inside the reasoning, 0 when not; -1 where phases are not followed
    GUARD = 10  # 1 when the request's guard tripped with this block, 2 when it had before; else 0


NUM_SCALARS = len(Column)


class Outcome(NamedTuple):
    """The decisions of a step's R rows.

    float64 throughout, which holds every token id and count exactly: one allocation, one copy to the host.

    Attributes:
        table: [R, NUM_SCALARS + 2 * K + 2 * E] float64: the scalars in :class:`Column`'s order; the regret of
            each kept exception, -1 elsewhere; vLLM's argmax at those positions, before any rewriting, -1
            elsewhere; at the metrics level "detailed" the kept token of each exception in order, then the
            target's log-probability of its own token there (0 after the last exception).
        width: K, the most draft tokens of a block.
    """

    table: Tensor
    width: int

    @classmethod
    def empty(cls, num_rows: int, width: int, num_details: int, device: torch.device) -> Outcome:
        """Allocate a table; nothing in it is initialised.

        Args:
            num_rows: R.
            width: K.
            num_details: E, the exceptions of a block that are looked up; 0 for none.
            device: Where the decisions are made.
        """
        columns = NUM_SCALARS + 2 * width + 2 * num_details
        return cls(torch.empty(num_rows, columns, dtype=torch.float64, device=device), width)

    def rows(self, first: int, number: int) -> Outcome:
        """Some consecutive rows, as a view."""
        if first == 0 and number == self.table.shape[0]:
            return self
        return Outcome(self.table[first : first + number], self.width)

    def cut(self, kept_tokens: int) -> Outcome:
        """The same decisions as far as the first tokens of each block go: a copy, its charge and counts cut.

        Under shadow the tail of the block was never emitted: there what would have been kept stays whole.
        """
        cut = Outcome(self.table.clone(), self.width)
        shadow = self.column(Column.SHADOW) != 0
        accepted = self.column(Column.ACCEPTED)
        cut.column(Column.ACCEPTED).copy_(torch.where(shadow, accepted, accepted.clamp(max=kept_tokens)))
        lost = torch.arange(self.width, device=self.table.device) >= kept_tokens
        regret = cut.exception_regret.masked_fill_(lost & ~shadow.unsqueeze(1), -1.0)
        # In the order of the tokens, as the decision summed them.
        charged = regret.clamp(min=0).cumsum(1)[:, -1] if self.width else torch.zeros_like(accepted)
        cut.column(Column.CHARGED).copy_(charged)
        return cut

    def column(self, column: Column) -> Tensor:
        """[R] float64, a view."""
        # Several times faster than indexing.
        return self.table.select(1, column)

    def counts(self, column: Column) -> Tensor:
        """[R] int64, a copy."""
        return self.column(column).to(torch.int64)

    @property
    def exception_regret(self) -> Tensor:
        """[R, K] float64, nats; -1 where no exception was kept. A view."""
        return self.table[:, NUM_SCALARS : NUM_SCALARS + self.width]

    @property
    def target_ids(self) -> Tensor:
        """[R, K] float64 holding token ids; -1 where no exception was kept. A view."""
        return self.table[:, NUM_SCALARS + self.width : NUM_SCALARS + 2 * self.width]

    @property
    def details(self) -> Tensor:
        """[R, 2 * E] float64, a view."""
        return self.table[:, NUM_SCALARS + 2 * self.width :]
