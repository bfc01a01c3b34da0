"""What each request has left of its regret budget, by request id, on the device.

The ledger belongs to the request id, not to a place in the batch, so preemption and resumption do not refill
it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_asd.config import RequestLimits
from vllm_asd.kernels import charge_accounts
from vllm_asd.kernels.accounts import BLOCK_CAP, BUDGET, GATE, GRANTED, NUM_COLUMNS, REFILL, REMAINING, SHADOW
from vllm_asd.slots import SlotTable

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True)
class LedgerEntry:
    """One request's account, read back to the host; nats."""

    limits: RequestLimits
    remaining: float
    granted: float

    @property
    def spent(self) -> float:
        """Regret charged so far. Without refill never above the budget, exactly: ``remaining`` is >= 0."""
        return max(0.0, self.limits.budget + self.granted - self.remaining)


class RegretLedger(SlotTable):
    """Budgets by request id; all that a step calls is enqueued on the current stream and waits for nothing.

    Slot 0, which unknown ids and dummy rows get, is strict and never changes.

    Per step: ``release``, ``admit``, ``slots``, ``charge``, all on one stream.
    """

    def __init__(self, capacity: int, device: torch.device | str, pin_memory: bool = False) -> None:
        """Allocate an empty ledger; the arguments are :class:`SlotTable`'s."""
        super().__init__(capacity, NUM_COLUMNS, device, pin_memory)

    def admit(self, request_id: Hashable, limits: RequestLimits) -> None:
        """Open an entry with the full budget; an id that has one keeps it (a preempted request resumes)."""
        self.open(request_id, (limits.budget, 0.0, *_limit_columns(limits)))

    def amend(self, request_id: Hashable, limits: RequestLimits) -> None:
        """Give a request under way new limits; what it has spent stays spent.

        A streaming session's later chunk may bring other limits than its first. Nothing waits for the device.

        Raises:
            KeyError: The request has no entry.
        """
        self._flush()
        row = self._state[self._slot_by_id[request_id]]
        spent = row[BUDGET] + row[GRANTED] - row[REMAINING]
        row[BUDGET:] = self.upload(_limit_columns(limits), torch.float64)
        row[REMAINING] = (limits.budget - spent).clamp(min=0)
        row[GRANTED] = spent - limits.budget + row[REMAINING]

    @property
    def accounts(self) -> Tensor:
        """[S, NUM_COLUMNS] float64: all accounts by slot, columns as in :mod:`vllm_asd.kernels.accounts`.

        The tensor itself, good until the next :meth:`slots`.
        """
        return self._state

    def charge(self, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None, spent: Tensor) -> Tensor:
        """Take what a step cost, then credit the refill, up to the budget.

        Args:
            slots: [R] int64, from :meth:`slots`; distinct, except that 0 may occur any number of times.
            charged: [R] float64, nats, >= 0.
            emitted_tokens: [R] int, tokens that the step emitted for each row; None credits nothing.
            spent: [R] float64, written: what each request has spent so far, in nats; 0 for slot 0.

        Returns:
            [R, 2] float64, what :meth:`restore` takes.
        """
        return charge_accounts(self._state, slots, charged, emitted_tokens, spent)

    def restore(self, slots: Tensor, before: Tensor) -> None:
        """Undo what :meth:`charge` did to slots [R], given what it returned for them: [R, 2] float64."""
        self._flush()
        self._state[:, REMAINING].index_copy_(0, slots, before[:, 0])
        self._state[:, GRANTED].index_copy_(0, slots, before[:, 1])

    def spent(self, request_id: Hashable) -> float:
        """Read what a request has spent, in nats. Waits for the device: for reports and tests.

        Raises:
            KeyError: the request has no entry.
        """
        self._flush()
        return _entry(self._state[self._slot_by_id[request_id]].tolist()).spent

    def snapshot(self) -> dict[Hashable, LedgerEntry]:
        """Read all entries by request id. Waits for the device: for reports and tests."""
        self._flush()
        rows = self._state.tolist()
        return {request_id: _entry(rows[slot]) for request_id, slot in self._slot_by_id.items()}


def _limit_columns(limits: RequestLimits) -> tuple[float, ...]:
    """The columns from the budget on."""
    cap = float(min(limits.block_cap, _MAX_INT32))
    return (limits.budget, limits.refill, limits.gate, cap, float(limits.shadow))


def _entry(row: Sequence[float]) -> LedgerEntry:
    limits = RequestLimits(row[BUDGET], row[GATE], int(row[BLOCK_CAP]), row[REFILL], row[SHADOW] != 0)
    return LedgerEntry(limits, remaining=row[REMAINING], granted=row[GRANTED])
