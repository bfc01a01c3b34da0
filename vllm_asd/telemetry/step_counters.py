"""Engine core: what the blocks of one step came to, on its way to the front end's counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_asd.kernels.outcome import Column
from vllm_asd.telemetry.block_tally import STOP_LABELS, BlockTally
from vllm_asd.telemetry.request_totals import News
from vllm_asd.telemetry.step_report import StepBlocks


class StepCounters:
    """Increments since the last :meth:`take`; plain values, as vLLM's messages need them."""

    def __init__(self) -> None:
        """Start empty."""
        self._counts = _empty()

    def add(self, blocks: StepBlocks, tally: BlockTally, news: News, counted: np.ndarray) -> None:
        """Count blocks.

        Args:
            blocks: What the worker decided.
            tally: What was kept of it.
            news: What that meant for the requests.
            counted: [M] bool, the blocks that belong in the server's counters.
        """
        counts = self._counts
        counts["exceptions"] += int(tally.num_exceptions[counted].sum())
        counts["regret"] += float(tally.regret[counted].sum())
        counts["reused_tokens"] += int(tally.reused[counted].sum())
        counts["accepted_tokens"] += int(tally.accepted[counted].sum())
        counts["strict_accepted_tokens"] += int(tally.strict_accepted[counted].sum())
        counts["exhausted_requests"] += int(np.count_nonzero(news.exhausted & counted))
        counts["guarded_requests"] += int(np.count_nonzero(news.guarded & counted))
        stops = np.bincount(blocks.column(Column.STOP)[counted].astype(np.int64), minlength=len(STOP_LABELS))
        for label, number in zip(STOP_LABELS, stops.tolist(), strict=True):
            if number:
                counts["blocks"][label] = counts["blocks"].get(label, 0) + number

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
