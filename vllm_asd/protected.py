"""The sets of tokens that requests protect, on the device: one bitmap per distinct set."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from vllm_asd.kernels import ProtectedIds


class ProtectedSets:
    """Bitmaps over the vocabulary, shared by the requests whose sets are equal.

    A row costs the same whatever its set holds, so that a client that sends its whole vocabulary as stop
    tokens slows nobody else down. Row 0 is the empty set. Nothing here waits for the device.
    """

    def __init__(self, vocab_size: int, device: torch.device, pin_memory: bool = False) -> None:
        """Hold the empty set only.

        Args:
            vocab_size: Ids from there on are left out: no draft of that id is ever accepted.
            device: Where the bitmaps are looked at.
            pin_memory: Pin host buffers; set it on CUDA.
        """
        self._vocab_size = vocab_size
        self._pin_memory = pin_memory
        empty = torch.from_numpy(ProtectedIds.pack([], vocab_size))
        self._words = torch.zeros(1, empty.shape[0], dtype=torch.int32, device=device)
        self._rows: dict[bytes, int] = {empty.numpy().tobytes(): 0}
        self._users: dict[int, int] = {}
        self._free: list[int] = []

    def acquire(self, ids: Iterable[int]) -> int:
        """Find or make the row of a set; each call is to be followed by a :meth:`release`."""
        # A client may send any number, also one that no int64 holds.
        array = np.fromiter((i for i in ids if 0 <= i < self._vocab_size), dtype=np.int64)
        packed = ProtectedIds.pack(array, self._vocab_size)
        key = packed.tobytes()
        row = self._rows.get(key)
        if row is None:
            row = self._free.pop() if self._free else self._grow()
            self._rows[key] = row
            host = torch.tensor(packed, dtype=torch.int32, pin_memory=self._pin_memory)
            self._words[row].copy_(host, non_blocking=True)
        self._users[row] = self._users.get(row, 0) + 1
        return row

    def release(self, row: int) -> None:
        """Let a request's set go; its row is free when nobody uses it."""
        self._users[row] -= 1
        if row == 0 or self._users[row] > 0:
            return
        del self._users[row]
        self._rows = {key: other for key, other in self._rows.items() if other != row}
        self._free.append(row)

    def of_rows(self, rows: Tensor) -> ProtectedIds:
        """The sets of a batch, by their rows [R] int64."""
        return ProtectedIds(self._words, rows)

    def _grow(self) -> int:
        """Double the room; rows keep their numbers."""
        size = self._words.shape[0]
        self._words = torch.cat((self._words, torch.zeros_like(self._words)))
        self._free.extend(range(2 * size - 1, size, -1))
        return size
