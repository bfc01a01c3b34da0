"""The periodic log line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class IntervalLog:
    """Adds up what happened since the last line."""

    def __init__(self) -> None:
        """Start an interval."""
        self._exceptions = self._reused = self._accepted = self._strict = self._blocks = 0
        self._exhausted = 0
        self._regret = 0.0

    def observe(self, counts: Mapping[str, Any]) -> None:
        """Add what :meth:`StepCounters.take` handed over."""
        self._exceptions += counts["exceptions"]
        self._regret += counts["regret"]
        self._reused += counts["reused_tokens"]
        self._accepted += counts["accepted_tokens"]
        self._strict += counts["strict_accepted_tokens"]
        self._blocks += sum(counts["blocks"].values())
        self._exhausted += counts["exhausted_requests"]

    def take(self) -> str | None:
        """The interval's line, and a new interval; None when no block was verified."""
        if not self._blocks:
            return None
        per_block = 1 + self._accepted / self._blocks
        strict = 1 + self._strict / self._blocks
        line = (
            f"ASD metrics: Exceptions: {self._exceptions}, Regret: {self._regret:.2f} nats, "
            f"Reused: {self._reused} tokens, Tokens per block: {per_block:.2f} "
            f"(strict: {strict:.2f}, gain: {per_block / strict - 1:+.1%}), "
            f"Exhausted requests: {self._exhausted}"
        )
        self.__init__()  # type: ignore[misc]
        return line
