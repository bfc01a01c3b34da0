"""Engine core: what the draft blocks of one step came to, on its way to the front end's counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_asd.telemetry.block_tally import FIRST_STOP, NUM_SUMS, STOP_LABELS
from vllm_asd.telemetry.counters import Counter


class StepCounters:
    """Increments since the last :meth:`take`."""

    def __init__(self) -> None:
        """Start empty."""
        self._sums = np.zeros(NUM_SUMS)
        self._request_regret: list[float] = []

    def add(self, sums: np.ndarray, counted: np.ndarray) -> None:
        """Count blocks.

        Args:
            sums: [M, NUM_SUMS] float64, as :attr:`BlockTally.sums`.
            counted: [M] bool, the blocks that belong in the server's counters.
        """
        self._sums += (sums if counted.all() else sums[counted]).sum(0)

    def end(self, regret: float) -> None:
        """Count a request that has ended, after its last block."""
        self._request_regret.append(regret)

    def take(self) -> dict[str, Any] | None:
        """Hand the increments over, and start again.

        Returns:
            Plain values, as vLLM's messages need them: each counter by its label, ``blocks`` by what stopped
            them, ``request_regret`` of the requests that ended; None when nothing happened.
        """
        sums = self._sums.tolist()
        blocks = {stop: int(n) for stop, n in zip(STOP_LABELS, sums[FIRST_STOP:], strict=True) if n}
        if not self._request_regret and not blocks:
            return None
        counts = {counter.label: counter.of(sums[counter]) for counter in Counter}
        result = {**counts, "blocks": blocks, "request_regret": self._request_regret}
        self.__init__()  # type: ignore[misc]
        return result
