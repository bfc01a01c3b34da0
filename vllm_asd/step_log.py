"""The steps whose output may still be thrown away, with what it takes to undo them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from vllm_asd.accounts import StepAccounts
from vllm_asd.batch import Emitted
from vllm_asd.kernels import Outcome


class StepRecord(NamedTuple):
    """One step that was settled: its rows, and their state as it began.

    Attributes:
        number: The step's, as the scheduler counts.
        request_ids: R ids; None where the row was taken back.
        accounts: What the rows decided by and paid with.
        outcome: The decisions, or None when the step verified no drafts.
        emitted: Its tokens.
        ledger_before: [R, 2] float64, or None when nothing was charged or credited.
        guard_slots: [R] int64, or None when no row is guarded.
        guard_before: [R, ...] float64, or None likewise.
    """

    number: int
    request_ids: Sequence[str | None]
    accounts: StepAccounts
    outcome: Outcome | None
    emitted: Emitted
    ledger_before: Tensor | None
    guard_slots: Tensor | None
    guard_before: Tensor | None


class StepLog:
    """The last steps of a worker, oldest first."""

    def __init__(self) -> None:
        """Start empty."""
        self._records: deque[StepRecord] = deque()

    def __len__(self) -> int:
        """Count the steps that can be undone."""
        return len(self._records)

    def append(self, record: StepRecord) -> None:
        """Remember a step."""
        self._records.append(record)

    def forget_through(self, number: int) -> None:
        """Drop the steps up to a number: the scheduler has said all it will say about them."""
        while self._records and self._records[0].number <= number:
            self._records.popleft()

    def take_back(self, request_id: str, since: int, after: int) -> list[tuple[StepRecord, int]]:
        """Find a request's steps from ``since`` on, the last one first, each with the request's row in it.

        Those behind ``after`` are then no longer the request's: a later rollback may reach back over them.
        """
        found = []
        for place, record in enumerate(self._records):
            if record.number < since or request_id not in record.request_ids:
                continue
            found.append((record, record.request_ids.index(request_id)))
            if record.number > after:
                others = [None if i == request_id else i for i in record.request_ids]
                self._records[place] = record._replace(request_ids=others)
        return found[::-1]
