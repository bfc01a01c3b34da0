"""Engine core: what the blocks of one step came to, on its way to the front end's counters."""

from __future__ import annotations

from typing import Any

from vllm_asd.telemetry.block_tally import BlockTally
from vllm_asd.telemetry.request_report import RequestReport


class StepCounters:
    """Increments since the last :meth:`take`; filled from the tallies that the per-request reports add up."""

    def __init__(self, counts_shadow: bool = False) -> None:
        """Start empty.

        Args:
            counts_shadow: Whether the server itself runs in shadow. On one that enforces, a request that only
                looks kept nothing: its report says what it saw, and the server's counters leave it out.
        """
        self._counts_shadow = counts_shadow
        self._ended: list[RequestReport] = []
        self._counts = _empty()

    def counts(self, report: RequestReport) -> bool:
        """Whether a request's blocks belong in the server's counters."""
        return self._counts_shadow or not report.is_shadow

    def add(self, tally: BlockTally) -> None:
        """Count one block."""
        counts = self._counts
        counts["exceptions"] += len(tally.exceptions)
        counts["regret"] += tally.regret
        counts["reused_tokens"] += tally.reused
        counts["accepted_tokens"] += tally.accepted
        counts["strict_accepted_tokens"] += tally.strict_accepted
        counts["blocks"][tally.stop] = counts["blocks"].get(tally.stop, 0) + 1

    def add_exhausted(self) -> None:
        """Count a request that ran out of budget."""
        self._counts["exhausted_requests"] += 1

    def add_guarded(self) -> None:
        """Count a request whose guard has tripped."""
        self._counts["guarded_requests"] += 1

    def end(self, report: RequestReport) -> None:
        """Note that a request has ended; its regret is read at :meth:`take`, after its last block."""
        if not report.is_strict and self.counts(report):
            self._ended.append(report)

    def take(self) -> dict[str, Any] | None:
        """Hand the increments over as plain values, and start again; None when nothing happened."""
        counts = self._counts
        if not self._ended and not counts["blocks"]:
            return None
        counts["request_regret"] = [report.payload["regret"] for report in self._ended]
        self._ended, self._counts = [], _empty()
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
