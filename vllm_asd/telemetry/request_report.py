"""What one request's relaxations came to: the ``asd`` object of its response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_asd.config import RequestLimits
from vllm_asd.telemetry.step_report import BlockReport


class RequestReport:
    """Adds up the blocks of one request as the scheduler sees them.

    Only what reached the response counts as relaxed; the ledger may have charged a little more (tokens behind
    a stop are cut off, and vLLM may discard a step), so ``regret_spent`` can exceed ``regret``.

    Attributes:
        payload: The ``asd`` object, plain JSON values, always up to date.
    """

    def __init__(self, limits: RequestLimits, detailed: bool) -> None:
        """Start empty.

        Args:
            limits: What the request runs under.
            detailed: Keep one entry per exception.
        """
        self._limits = limits
        self.payload: dict[str, Any] = {
            "mode": "strict" if limits.is_strict else "shadow" if limits.shadow else "enforce",
            "budget": limits.budget,
            "gate": limits.gate,
            "block_cap": limits.block_cap,
            "refill": limits.refill,
            "regret_spent": 0.0,
            "regret": 0.0,
            "exceptions": 0,
            "reused_tokens": 0,
            "verified_blocks": 0,
            "accepted_tokens": 0,
            "strict_accepted_tokens": 0,
            "exhausted_at_token": None,
        }
        self._trace: list[dict[str, Any]] | None = None
        if detailed:
            self._trace = self.payload["exception_trace"] = []

    def observe(self, block: BlockReport, output_position: int, new_token_ids: Sequence[int]) -> None:
        """Add one verification block.

        Args:
            block: What the worker decided.
            output_position: Output tokens the request had before the block.
            new_token_ids: The block's tokens that were kept, in order, after stop conditions.
        """
        total = self.payload
        # Under shadow the block's tail was never emitted: what would have been kept is what is reported.
        emitted = block.num_draft if block.shadow else len(new_token_ids)
        total["verified_blocks"] += 1
        total["accepted_tokens"] += min(block.accepted, emitted)
        total["strict_accepted_tokens"] += min(block.strict_accepted, emitted)
        total["reused_tokens"] += block.reused
        total["regret_spent"] = block.spent
        for position, target_id, regret in block.exceptions:
            if position >= emitted:
                break
            total["exceptions"] += 1
            total["regret"] += regret
            if self._trace is not None:
                token_id = None if block.shadow else new_token_ids[position]
                self._trace.append(
                    {
                        "position": output_position + position,
                        "token_id": token_id,
                        "target_token_id": target_id,
                        "regret": regret,
                    }
                )
        exhausted = self._limits.refill == 0 and block.spent >= self._limits.budget
        if exhausted and total["exhausted_at_token"] is None:
            total["exhausted_at_token"] = output_position + len(new_token_ids)
