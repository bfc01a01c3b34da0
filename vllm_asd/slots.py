"""Per-request state on the device, addressed by request id; nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor


class SlotTable:
    """Rows of float64 by request id, or by whatever names a part of a request. A row stays where it is.

    Slot 0 belongs to no request: it is what unknown ids and dummy rows get, it is all zeros, and nothing is
    ever written to it. Slots are good until the next :meth:`release`; after that they may belong to another
    request.

    Host buffers go to the device in non-blocking copies. A pinned buffer must not be overwritten while its
    copy is in flight, so each copy gets a fresh one; PyTorch's pinned allocator hands memory out again only
    after the copy.
    """

    def __init__(
        self, capacity: int, num_columns: int, device: torch.device | str, pin_memory: bool = False
    ) -> None:
        """Allocate an empty table.

        Args:
            capacity: Requests to make room for; doubled whenever it is exceeded.
            num_columns: Values per request.
            device: Where the rows live.
            pin_memory: Pin host buffers; set it on CUDA, where an unpinned copy blocks the host.

        Raises:
            ValueError: ``capacity`` is below 1.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._pin_memory = pin_memory
        self._state = torch.zeros(capacity + 1, num_columns, dtype=torch.float64, device=device)
        self._slot_by_id: dict[Hashable, int] = {}
        self._free = list(range(capacity, 0, -1))
        self._pending: dict[int, tuple[float, ...]] = {}

    @property
    def capacity(self) -> int:
        """Requests there is room for before the next doubling."""
        return self._state.shape[0] - 1

    def __len__(self) -> int:
        """Count the requests that have a row."""
        return len(self._slot_by_id)

    def __contains__(self, request_id: object) -> bool:
        """Tell whether a request has a row."""
        return request_id in self._slot_by_id

    def open(self, request_id: Hashable, row: tuple[float, ...]) -> None:
        """Give a request its row; an id that has one keeps it (a preempted request resumes)."""
        if request_id in self._slot_by_id:
            return
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._slot_by_id[request_id] = slot
        self._pending[slot] = row

    def release(self, request_ids: Iterable[Hashable]) -> None:
        """Take rows back; unknown ids are ignored. The same id opened later starts afresh."""
        for request_id in request_ids:
            slot = self._slot_by_id.pop(request_id, None)
            if slot is not None:
                self._pending[slot] = (0.0,) * self._state.shape[1]
                self._free.append(slot)

    def slots(self, request_ids: Sequence[Hashable]) -> Tensor:
        """Look up the slots of a batch and write what was opened and released since the last call.

        Args:
            request_ids: R ids, in batch order.

        Returns:
            [R] int64 on the device; 0 for unknown ids.
        """
        self._flush()
        return self.upload([self._slot_by_id.get(request_id, 0) for request_id in request_ids], torch.int64)

    def upload(self, rows: Sequence[object] | np.ndarray, dtype: torch.dtype) -> Tensor:
        """Copy host values to the device without waiting, through a buffer of their own."""
        host = torch.tensor(rows, dtype=dtype, pin_memory=self._pin_memory)
        return host.to(self._state.device, non_blocking=True)

    def _grow(self) -> None:
        """Double the room for requests. Slots keep their numbers."""
        capacity = self._state.shape[0] - 1
        self._state = torch.cat((self._state, self._state.new_zeros(capacity, self._state.shape[1])))
        self._free.extend(range(2 * capacity, capacity, -1))

    def _flush(self) -> None:
        """Write pending rows in one copy; the first column of the packed rows is the slot."""
        if self._pending:
            packed = self.upload([(float(slot), *row) for slot, row in self._pending.items()], torch.float64)
            self._state.index_copy_(0, packed[:, 0].to(torch.int64), packed[:, 1:])
            self._pending.clear()
