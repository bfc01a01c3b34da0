"""Which account decides a block and pays for it: one per request, or one per phase of its text.

In scope "phases" a request has two accounts in the ledger. A block belongs to the phase in which it begins:
the account is picked per row, on the device, so that what follows (the rule, the charge) knows of one only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels import Column, DraftBlocks, MaximaBlocks, Outcome, draft_scope
from vllm_asd.ledger import RegretLedger
from vllm_asd.phase import PhaseTable, ThinkMarkers, starts_thinking

if TYPE_CHECKING:
    from vllm_asd.batch import Emitted


class BatchAccounts(NamedTuple):
    """What R rows keep from step to step.

    Attributes:
        slots: [R] int64, the rows' accounts in the ledger; in scope "phases" those for the reasoning.
        answer: [R] int64, those for the answer, or None when there is one per request.
        phase_slots: [R] int64, or None when phases are not followed.
        steady: What each step decides by where phases are not followed.
    """

    slots: Tensor
    answer: Tensor | None
    phase_slots: Tensor | None
    steady: StepAccounts


class StepAccounts(NamedTuple):
    """What R rows of one step decide by and pay with.

    Attributes:
        slots: [R] int64, one account per row.
        thinking: [R] bool, the phase in which the step begins, or None when phases are not followed.
        phase_slots: [R] int64, or None likewise.
    """

    slots: Tensor
    thinking: Tensor | None
    phase_slots: Tensor | None

    def rows(self, first: int, number: int) -> StepAccounts:
        """Some consecutive rows, as views."""
        return StepAccounts(*(None if c is None else c[first : first + number] for c in self))  # type: ignore[arg-type]


class Accounts:
    """The ledger and the phases of one worker's requests. Nothing here waits for the device."""

    def __init__(
        self, config: AsdConfig, device: torch.device, capacity: int, markers: ThinkMarkers | None
    ) -> None:
        """Allocate the state.

        Args:
            config: The server's settings.
            device: Where the logits live.
            capacity: Requests to make room for at first.
            markers: The model's think tokens; looked at unless ``asd_scope`` is "all".

        Raises:
            ValueError: ``asd_scope`` is not "all" and there are no markers.
        """
        if config.asd_scope != "all" and markers is None:
            raise ValueError(f"asd_scope={config.asd_scope!r} needs the model's think tokens")
        self.per_phase = config.asd_scope == "phases"
        self.markers = None if config.asd_scope == "all" else markers
        self._refills = config.asd_refill > 0 or (config.asd_answer_refill or 0.0) > 0
        pinned = device.type == "cuda"
        self.ledger = RegretLedger(capacity * (2 if self.per_phase else 1), device, pin_memory=pinned)
        self._phases = PhaseTable(capacity, device, pin_memory=pinned)

    def admit(self, request_id: str, limits: RequestLimits, prompt_ids: Sequence[int] | None) -> None:
        """Open a request's account or accounts, full, in the phase that its prompt leaves it in."""
        self.ledger.admit(request_id, limits)
        if self.per_phase:
            self.ledger.admit(_answer_id(request_id), limits.answer or limits)
        if self.markers is not None:
            self._phases.admit(request_id, starts_thinking(prompt_ids, self.markers))

    def amend(self, request_id: str, limits: RequestLimits) -> None:
        """Give a request under way new limits; what each account has spent stays spent."""
        self.ledger.amend(request_id, limits)
        if self.per_phase:
            self.ledger.amend(_answer_id(request_id), limits.answer or limits)

    def extend_prompt(self, request_id: str, prompt_ids: Sequence[int] | None) -> None:
        """Follow a session's phase through its next chunk, whose prompt holds all that was said before."""
        if self.markers is not None:
            self._phases.move(request_id, starts_thinking(prompt_ids, self.markers))

    def release(self, request_ids: Iterable[str]) -> None:
        """Close the accounts of requests; unknown ids are ignored."""
        ids = list(request_ids)
        self.ledger.release(ids)
        if self.per_phase:
            self.ledger.release(map(_answer_id, ids))
        self._phases.release(ids)

    def gather(self, request_ids: Sequence[str]) -> BatchAccounts:
        """Look up a batch of R requests; unknown ones get an account that is strict and never changes."""
        answer = self.ledger.slots([_answer_id(i) for i in request_ids]) if self.per_phase else None
        phase_slots = None if self.markers is None else self._phases.slots(request_ids)
        slots = self.ledger.slots(request_ids)
        return BatchAccounts(slots, answer, phase_slots, StepAccounts(slots, None, None))

    def at_step(self, batch: BatchAccounts) -> StepAccounts:
        """Read the phases in which a step begins, and pick each row's account by it."""
        if batch.phase_slots is None:
            return batch.steady
        thinking = self._phases.thinking(batch.phase_slots)
        slots = batch.slots if batch.answer is None else torch.where(thinking, batch.slots, batch.answer)
        return StepAccounts(slots, thinking, batch.phase_slots)

    def in_scope(self, blocks: DraftBlocks | MaximaBlocks, rows: StepAccounts, width: int) -> Tensor | None:
        """Where exceptions may be made: [R, width] bool, or None for everywhere."""
        if self.markers is None or rows.thinking is None:
            return None
        return draft_scope(blocks, rows.thinking, self.markers, self.per_phase, width)

    @property
    def reads_output(self) -> bool:
        """Whether :meth:`settle` looks at what a step emitted."""
        return self._refills or self.markers is not None

    def settle(self, rows: StepAccounts, outcome: Outcome | None, emitted: Emitted) -> Tensor | None:
        """Charge a step, credit its refill, and follow the phases through what it emitted.

        Args:
            rows: The whole step's.
            outcome: The decisions, whose spending is written; None when the step verified no drafts.
            emitted: Looked at if :attr:`reads_output`.

        Returns:
            [R, 2] float64, what :meth:`restore` needs of the ledger; None when nothing was charged or
            credited.
        """
        if self.markers is not None and rows.phase_slots is not None and rows.thinking is not None:
            tokens_of = (emitted.num_tokens, emitted.discarded)
            self._phases.follow(rows.phase_slots, emitted.ids, self.markers, rows.thinking, *tokens_of)
        tokens = emitted.counts if self._refills else None
        if outcome is not None:
            charged, spent = outcome.column(Column.CHARGED), outcome.column(Column.SPENT)
            return self.ledger.charge(rows.slots, charged, tokens, spent)
        if tokens is None:
            return None
        nothing = torch.zeros(rows.slots.shape[0], dtype=torch.float64, device=rows.slots.device)
        return self.ledger.charge(rows.slots, nothing, tokens, torch.empty_like(nothing))

    def restore(self, rows: StepAccounts, before: Tensor | None) -> None:
        """Put accounts and phases back to where they were before a step.

        Args:
            rows: The step's, or some of them.
            before: [R, 2] float64, what :meth:`settle` returned for them.
        """
        if before is not None:
            self.ledger.restore(rows.slots, before)
        if rows.phase_slots is not None and rows.thinking is not None:
            self._phases.restore(rows.phase_slots, rows.thinking)


def _answer_id(request_id: str) -> tuple[str, str]:
    """The key of a request's second account; no request id, whatever a client sends, equals it."""
    return (request_id, "answer")
