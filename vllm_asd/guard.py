"""Which requests have gone wrong and stay strict until they end, by request id, on the device."""

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.policy.guard import (
    CLUSTER_WINDOW,
    LONGEST_PERIOD,
    extend_runs,
    is_clustered,
    is_looping,
    shift_in,
)
from vllm_asd.slots import SlotTable

# Columns of the state: the latch, then these. A token is kept as its id plus one, so that zeros are an
# empty output.
_WIDTHS = (LONGEST_PERIOD, LONGEST_PERIOD, CLUSTER_WINDOW)
_EMPTY = (0.0,) * (1 + sum(_WIDTHS))


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
        """Add what a step emitted, and trip the guards of the outputs that now loop or hold a cluster.

        Under shadow the emitted tokens are strict's and hold no exception. Loops are then looked for in that
        text, and clusters in what would have been emitted: the block's exceptions, over its tokens. Behind
        the first exception that is a forecast, as all of shadow's figures are.

        Args:
            slots: [R] int64, from :meth:`slots`; distinct, except that 0 may occur any number of times.
            emitted_ids: [R, E] int, the step's tokens in order, padded with -1; a row of a partial prefill,
                or one that vLLM discards, has none.
            exceptions: [R, K] bool, draft positions at which an exception was kept, or None when the step
                verified no drafts.
            shadow_tokens: [R] int, at most E: tokens of the block had it been enforced, for rows under
                shadow; -1 for the others. None when all are.

        Returns:
            [R] bool, :meth:`tripped` from now on.
        """
        width = emitted_ids.shape[1]
        emitted = torch.where(slots.unsqueeze(1) > 0, emitted_ids, -1)
        count = (emitted >= 0).sum(1)
        latch, recent, runs, flags = torch.split(self._state.index_select(0, slots), [1, *_WIDTHS], dim=1)

        tokens = (emitted + 1).to(torch.float64)
        runs = extend_runs(runs, recent, tokens, count)
        recent = shift_in(recent, tokens, count)
        if exceptions is None:
            marks = torch.zeros_like(tokens)
        else:
            marks = torch.nn.functional.pad(exceptions.to(torch.float64), (0, width - exceptions.shape[1]))
        if shadow_tokens is not None:
            count = torch.where((shadow_tokens >= 0) & (count > 0), shadow_tokens, count)
        flags = shift_in(flags, marks, count)

        tripped = (latch.squeeze(1) != 0) | is_looping(runs) | is_clustered(flags)
        latch = tripped.to(torch.float64).unsqueeze(1)
        self._state[slots] = torch.cat((latch, recent, runs, flags), dim=1)
        return tripped
