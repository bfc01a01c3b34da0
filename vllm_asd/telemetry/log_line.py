"""The periodic log line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_asd.telemetry.counters import REPORTED, Counter


class IntervalLog:
    """Adds up what happened since the last line."""

    def __init__(self) -> None:
        """Start an interval."""
        self._start()

    def _start(self) -> None:
        self._sums: dict[Counter, float] = dict.fromkeys(Counter, 0)
        self._blocks = 0

    def observe(self, counts: Mapping[str, Any]) -> None:
        """Add what :meth:`StepCounters.take` handed over."""
        for counter in Counter:
            self._sums[counter] += counts[counter.label]
        self._blocks += sum(counts["blocks"].values())

    def take(self) -> str | None:
        """The interval's line, and a new interval; None when no block was verified."""
        if not self._blocks:
            return None
        sums, blocks = self._sums, self._blocks
        per_block = 1 + sums[Counter.ACCEPTED_TOKENS] / blocks
        strict = 1 + sums[Counter.STRICT_ACCEPTED_TOKENS] / blocks
        gain = (
            f"Tokens per block: {per_block:.2f} (strict: {strict:.2f}, gain: {per_block / strict - 1:+.1%})"
        )
        logged = {counter: counter.log.format(sums[counter]) for counter in Counter if counter.log}
        of_tokens = [text for counter, text in logged.items() if counter in REPORTED]
        of_requests = [text for counter, text in logged.items() if counter not in REPORTED]
        self._start()
        return "ASD metrics: " + ", ".join([*of_tokens, gain, *of_requests])
