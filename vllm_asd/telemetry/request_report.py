"""What one request's relaxations came to: the ``asd`` object of its response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_asd.config import RequestLimits
from vllm_asd.telemetry.block_tally import STOP_LABELS, BlockTally
from vllm_asd.telemetry.step_report import BlockException, BlockReport


class RequestReport:
    """Adds up the blocks of one request as the scheduler sees them.

    Only what reached the response counts as relaxed; the ledger may have charged a little more (tokens behind
    a stop are cut off, and vLLM may discard a step), so ``regret_spent`` can exceed ``regret``. Under shadow
    the figures are what would have been kept. A request with limits of its own for the answer has ``phases``
    too; a block counts where it began.

    Attributes:
        payload: The ``asd`` object, plain JSON values, always up to date.
    """

    def __init__(self, limits: RequestLimits, detailed: bool, sampled: bool = False) -> None:
        """Start empty.

        Args:
            limits: What the request runs under.
            detailed: Keep one entry per exception.
            sampled: Its temperature is above 0: what is called the target's token was drawn, not the best.
        """
        self.payload: dict[str, Any] = {
            "mode": "strict" if limits.is_strict else "shadow" if limits.shadow else "enforce",
            **_amounts(limits),
            "sampled": sampled,
            "regret_spent": 0.0,
            "regret": 0.0,
            "exceptions": 0,
            "reused_tokens": 0,
            "verified_blocks": 0,
            "accepted_tokens": 0,
            "strict_accepted_tokens": 0,
            "strict_blocks_estimate": 0.0,
            "blocks_by_stop": dict.fromkeys(STOP_LABELS, 0),
            "exhausted_at_token": None,
            "guard": "on" if limits.guard else "off",
            "guarded_at_token": None,
        }
        if limits.answer is not None:
            self.payload["phases"] = {"reasoning": _phase(limits), "answer": _phase(limits.answer)}
        self._trace: list[dict[str, Any]] | None = None
        if detailed:
            self._trace = self.payload["exception_trace"] = []

    @property
    def is_shadow(self) -> bool:
        """Whether the request only looks: what the report counts was not emitted."""
        return bool(self.payload["mode"] == "shadow")

    @property
    def is_strict(self) -> bool:
        """Whether the request's limits rule every exception out."""
        return bool(self.payload["mode"] == "strict")

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget has refused a draft token that gate and cap would have kept."""
        return self.payload["exhausted_at_token"] is not None

    @property
    def is_guarded(self) -> bool:
        """Whether the request's guard has tripped: it is strict from there on."""
        return self.payload["guarded_at_token"] is not None

    def observe(
        self, block: BlockReport, output_position: int, new_token_ids: Sequence[int]
    ) -> BlockTally | None:
        """Add one verification block.

        Args:
            block: What the worker decided.
            output_position: Output tokens the request had before the block.
            new_token_ids: The block's tokens that were kept, in order, after stop conditions.

        Returns:
            What was added; None when vLLM discarded the block.
        """
        total = self.payload
        phase = self._phase_of(block)
        phase["regret_spent"] = block.spent
        phases = total.get("phases", {"": phase})
        total["regret_spent"] = sum(account["regret_spent"] for account in phases.values())
        if not new_token_ids:
            return None
        tally = BlockTally.of(block, len(new_token_ids))
        total["verified_blocks"] += 1
        total["blocks_by_stop"][tally.stop] += 1
        total["accepted_tokens"] += tally.accepted
        total["strict_accepted_tokens"] += tally.strict_accepted
        total["reused_tokens"] += tally.reused
        total["exceptions"] += len(tally.exceptions)
        phase["exceptions"] += len(tally.exceptions)
        total["regret"] += tally.regret
        total["strict_blocks_estimate"] = self._strict_blocks()
        # A phase that was given no budget is strict by wish: it has nothing to run out of.
        if tally.out_of_budget and phase.get("budget") != 0:
            for account in (total, phase):
                if account["exhausted_at_token"] is None:
                    account["exhausted_at_token"] = output_position + tally.accepted
        if block.guard and not self.is_guarded:
            # Tripped before, by tokens without drafts or a block that vLLM discarded: this one is strict too.
            total["guarded_at_token"] = output_position + (len(new_token_ids) if block.guard == 1 else 0)
        if self._trace is not None:
            for exception in tally.exceptions:
                token_id = exception.token_id
                if token_id is None and not block.shadow:
                    token_id = new_token_ids[exception.position]
                self._trace.append(
                    _entry(exception, block.num_draft, output_position, token_id, total["sampled"])
                )
        return tally

    def _phase_of(self, block: BlockReport) -> dict[str, Any]:
        """The phase's part of the report; one that nobody reads where there are no phases."""
        phases: dict[str, dict[str, Any]] | None = self.payload.get("phases")
        if phases is None or block.thinking is None:
            return {"exceptions": 0, "exhausted_at_token": None}
        return phases["reasoning" if block.thinking else "answer"]

    def _strict_blocks(self) -> float:
        """Blocks that strict verification would have needed for as many tokens, at its mean in these blocks.

        An estimate: behind the first exception strict would have decoded another text.
        """
        blocks = self.payload["verified_blocks"]
        emitted = self.payload["accepted_tokens"] + blocks
        return float(blocks * emitted / (self.payload["strict_accepted_tokens"] + blocks))


def _phase(limits: RequestLimits) -> dict[str, Any]:
    return {
        **_amounts(limits),
        "regret_spent": 0.0,
        "exceptions": 0,
        "exhausted_at_token": None,
    }


def _amounts(limits: RequestLimits) -> dict[str, Any]:
    return {
        "budget": limits.budget,
        "gate": limits.gate,
        "block_cap": limits.block_cap,
        "refill": limits.refill,
    }


def _entry(
    exception: BlockException, num_draft: int, output_position: int, token_id: int | None, sampled: bool
) -> dict[str, Any]:
    # Read off the logits of the decision, which a sampled request's carry noise in.
    target = None if sampled else exception.target_logprob
    return {
        "position": output_position + exception.position,
        "token_id": token_id,
        "target_token_id": exception.target_id,
        "regret": exception.regret,
        "at_stake": num_draft - exception.position,
        "logprob": None if target is None else target - exception.regret,
        "target_logprob": target,
    }
