"""Which requests have gone wrong and stay strict until they end, by request id, on the device."""

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels import Outcome, follow_guards
from vllm_asd.kernels.guards import GUARD_WIDTHS, advance_guards
from vllm_asd.slots import SlotTable

_EMPTY = (0.0,) * (1 + sum(GUARD_WIDTHS))


class GuardedRows(NamedTuple):
    """The guards of a step's R rows as it begins.

    Attributes:
        slots: [R] int64; 0 for rows without a guard.
        tripped: [R] bool.
    """

    slots: Tensor
    tripped: Tensor


class GuardTable(SlotTable):
    """The tail of each guarded request's output, and whether its guard has tripped.

    Slot 0, which unknown ids get, never trips. What the prompt says does not count.
    """

    def __init__(self, capacity: int, device: torch.device | str, pin_memory: bool = False) -> None:
        """Allocate an empty table; the arguments are :class:`SlotTable`'s."""
        super().__init__(capacity, len(_EMPTY), device, pin_memory)

    def admit(self, request_id: str) -> None:
        """Start watching a request; an id that is there already keeps its output and its latch."""
        self.open(request_id, _EMPTY)

    def tripped(self, slots: Tensor) -> Tensor:
        """[R] bool for slots [R]."""
        return self._state[:, 0].index_select(0, slots) != 0

    def rows(self, slots: Tensor) -> Tensor:
        """Copy all that is kept of slots [R]; :meth:`restore` takes it."""
        return self._state.index_select(0, slots)

    def restore(self, slots: Tensor, rows: Tensor) -> None:
        """Put slots [R] back to what they were, as :meth:`rows` gave it."""
        self._flush()
        self._state.index_copy_(0, slots, rows)

    def follow(
        self,
        slots: Tensor,
        emitted_ids: Tensor,
        exceptions: Tensor | None = None,
        shadow_tokens: Tensor | None = None,
    ) -> Tensor:
        """Add what a step emitted: :func:`vllm_asd.kernels.guards.advance_guards`.

        Returns:
            [R] bool, :meth:`tripped` from now on.
        """
        return advance_guards(self._state, slots, emitted_ids, exceptions, shadow_tokens)

    def settle(
        self,
        slots: Tensor,
        ids: Tensor,
        num_tokens: Tensor | None,
        discarded: Tensor | None,
        outcome: Outcome | None,
    ) -> None:
        """Add what a step emitted and write the report's column; see :func:`follow_guards`."""
        follow_guards(self._state, slots, ids, num_tokens, discarded, outcome)
