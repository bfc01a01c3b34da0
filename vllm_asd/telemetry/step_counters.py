"""Engine core: what the blocks of one step came to, on its way to the front end's counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_asd.telemetry.block_tally import FIRST_STOP, STOP_LABELS, BlockTally, Sum
from vllm_asd.telemetry.request_totals import News

_SUMS = {
    "exceptions": Sum.EXCEPTIONS,
    "reused_tokens": Sum.REUSED,
    "accepted_tokens": Sum.ACCEPTED,
    "strict_accepted_tokens": Sum.STRICT_ACCEPTED,
}


class StepCounters:
    """Increments since the last :meth:`take`; plain values, as vLLM's messages need them."""

    def __init__(self) -> None:
        """Start empty."""
        self._counts = _empty()

    def add(self, tally: BlockTally, news: News, counted: np.ndarray) -> None:
        """Count blocks.

        Args:
            tally: What was kept of each.
            news: What that meant for the requests.
            counted: [M] bool, the blocks that belong in the server's counters.
        """
        counts = self._counts
        sums = (tally.sums if counted.all() else tally.sums[counted]).sum(0).tolist()
        counts["regret"] += sums[Sum.REGRET]
        for name, figure in _SUMS.items():
            counts[name] += int(sums[figure])
        for label, number in zip(STOP_LABELS, sums[FIRST_STOP:], strict=True):
            if number:
                counts["blocks"][label] = counts["blocks"].get(label, 0) + int(number)
        counts["exhausted_requests"] += int(np.count_nonzero(news.exhausted & counted))
        counts["guarded_requests"] += int(np.count_nonzero(news.guarded & counted))

    def end(self, regret: float) -> None:
        """Count a request that has ended, after its last block."""
        self._counts["request_regret"].append(regret)

    def take(self) -> dict[str, Any] | None:
        """Hand the increments over, and start again; None when nothing happened."""
        counts = self._counts
        if not counts["request_regret"] and not counts["blocks"]:
            return None
        self._counts = _empty()
        return counts


def _empty() -> dict[str, Any]:
    return {
        "exceptions": 0,
        "regret": 0.0,
        "reused_tokens": 0,
        "accepted_tokens": 0,
        "strict_accepted_tokens": 0,
        "blocks": {},
        "exhausted_requests": 0,
        "guarded_requests": 0,
        "request_regret": [],
    }
