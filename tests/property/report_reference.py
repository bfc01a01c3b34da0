"""Reports and counters one block at a time, in plain Python: what the vectorised ones are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.read_blocks import by_request
from vllm_asd.config import RequestLimits
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.step_report import StepBlocks

STOP_LABELS = tuple(reason.name.lower() for reason in StopReason)


class BlockException(NamedTuple):
    """A kept token that is not the target's argmax.

    Attributes:
        position: Place in the block, from 0.
        target_id: What the target would have emitted.
        regret: Nats.
        token_id: The kept token; known at the metrics level "detailed" alone.
        target_logprob: The target's log-probability of its own token, in nats; as above.
    """

    position: int
    target_id: int
    regret: float
    token_id: int | None = None
    target_logprob: float | None = None


class BlockReport(NamedTuple):
    """What one verification block of one request did; plain numbers, cheap to pickle.

    Attributes:
        num_draft: Valid draft tokens.
        accepted: Draft tokens kept (in shadow: that would have been kept).
        strict_accepted: Draft tokens that strict verification keeps of the same block.
        reused: Kept matches behind the first exception.
        stop: Value of :class:`vllm_asd.policy.StopReason`.
        charged: Nats charged for the block.
        spent: Nats spent so far, this block included, by the request or, where ``thinking`` is given, by its
            account for that phase.
        shadow: Whether the exceptions were only counted, not emitted.
        exceptions: The kept exceptions, in order.
        thinking: Whether the block began inside the reasoning; None where a request has one account.
        guard: 1 when the request's guard tripped with this block, 2 when it had before, so that the block is
            strict; else 0.
    """

    num_draft: int
    accepted: int
    strict_accepted: int
    reused: int
    stop: int
    charged: float
    spent: float
    shadow: bool
    exceptions: tuple[BlockException, ...]
    thinking: bool | None = None
    guard: int = 0


def read_blocks(blocks: StepBlocks) -> list[tuple[str, BlockReport]]:
    """A step's rows as records, with their requests' ids."""
    records = []
    for request_id, block in by_request(blocks).items():
        details = block.details or ((None, None),) * len(block.exceptions)
        fields: dict[str, Any] = block._asdict()
        del fields["details"]
        fields["exceptions"] = tuple(
            BlockException(*exception, *detail)
            for exception, detail in zip(block.exceptions, details, strict=True)
        )
        fields["thinking"] = None if block.thinking < 0 else block.thinking != 0
        records.append((request_id, BlockReport(**fields)))
    return records


class BlockTally(NamedTuple):
    """One verification block after stop conditions cut it; under shadow, what would have been kept.

    Attributes:
        accepted: Draft tokens kept.
        strict_accepted: Draft tokens that strict verification keeps of the same block.
        reused: Kept matches behind the first exception.
        exceptions: The kept exceptions, in order.
        stop: Label of what ended the block.
        out_of_budget: Whether the next draft token was refused for want of budget alone.
    """

    accepted: int
    strict_accepted: int
    reused: int
    exceptions: tuple[BlockException, ...]
    stop: str
    out_of_budget: bool

    @property
    def regret(self) -> float:
        """Nats, of the kept exceptions."""
        return sum(exception.regret for exception in self.exceptions)

    @classmethod
    def of(cls, block: BlockReport, num_emitted: int) -> BlockTally:
        """Cut a block to what was emitted.

        Args:
            block: What the worker decided.
            num_emitted: Tokens of the block in the response, the target's own last one included; at least 1.
        """
        # Under shadow the block's tail was never emitted: what would have been kept is what is counted.
        reach = block.num_draft + 1 if block.shadow else num_emitted
        accepted = min(block.accepted, reach)
        exceptions = tuple(exception for exception in block.exceptions if exception.position < accepted)
        reused = accepted - exceptions[0].position - len(exceptions) if exceptions else 0
        return cls(
            accepted=accepted,
            strict_accepted=min(block.strict_accepted, reach),
            reused=reused,
            exceptions=exceptions,
            stop=STOP_LABELS[block.stop],
            out_of_budget=block.stop == StopReason.BUDGET and block.accepted < reach,
        )


class RequestReport:
    """Adds up the blocks of one request as the scheduler sees them.

    Only what reached the response counts. Under shadow the figures are what would have been kept. A request
    with limits of its own for the answer has ``phases`` too; a block counts where it began.

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
            "exceptions": 0,
            "regret": 0.0,
            "reused_tokens": 0,
            "accepted_tokens": 0,
            "strict_accepted_tokens": 0,
            "verified_blocks": 0,
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
        if not new_token_ids:
            return None
        total = self.payload
        phase = self._phase_of(block)
        tally = BlockTally.of(block, len(new_token_ids))
        # The worker takes back what was cut off.
        phase["regret_spent"] = block.spent - sum(
            exception.regret for exception in block.exceptions if exception not in tally.exceptions
        )
        phases = total.get("phases", {"": phase})
        total["regret_spent"] = sum(account["regret_spent"] for account in phases.values())
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
