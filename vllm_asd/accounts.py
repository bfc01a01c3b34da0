"""Which account decides a block and pays for it: one per request, or one per phase of its text.

In scope "phases" a request has two accounts in the ledger. A block belongs to the phase in which it begins:
the account is picked per row, on the device, so that what follows (the rule, the charge) knows of one only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels import DraftBlocks, pad_rows
from vllm_asd.ledger import RegretLedger
from vllm_asd.phase import PhaseTable, ThinkMarkers, before_marker, in_reasoning, starts_thinking


class AccountRows(NamedTuple):
    """The accounts of R rows.

    Attributes:
        slots: [R] int64, in the ledger.
        gate: [R] float64.
        block_cap: [R] int32.
        shadow: [R] bool.
    """

    slots: Tensor
    gate: Tensor
    block_cap: Tensor
    shadow: Tensor


class BatchAccounts(NamedTuple):
    """What R rows keep from step to step.

    Attributes:
        account: The rows' accounts; in scope "phases" those for the reasoning.
        answer: Those for the answer, or None when there is one per request.
        phase_slots: [R] int64, or None when phases are not followed.
    """

    account: AccountRows
    answer: AccountRows | None
    phase_slots: Tensor | None


class StepAccounts(NamedTuple):
    """What R rows of one step decide by and pay with.

    Attributes:
        account: One per row.
        thinking: [R] bool, the phase in which the step begins, or None when phases are not followed.
        phase_slots: [R] int64, or None likewise.
    """

    account: AccountRows
    thinking: Tensor | None
    phase_slots: Tensor | None

    def closed(self, where: Tensor) -> StepAccounts:
        """With a gate of 0 in some of the rows [R] bool: those are strict, and pay nothing."""
        gate = torch.where(where, 0, self.account.gate)
        return self._replace(account=self.account._replace(gate=gate))

    def rows(self, chunk: slice) -> StepAccounts:
        """Some consecutive rows."""
        return StepAccounts(
            account=AccountRows(*(column[chunk] for column in self.account)),
            thinking=None if self.thinking is None else self.thinking[chunk],
            phase_slots=None if self.phase_slots is None else self.phase_slots[chunk],
        )


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
        answer = self._rows([_answer_id(i) for i in request_ids]) if self.per_phase else None
        phase_slots = None if self.markers is None else self._phases.slots(request_ids)
        return BatchAccounts(self._rows(request_ids), answer, phase_slots)

    def at_step(self, batch: BatchAccounts) -> StepAccounts:
        """Read the phases in which a step begins, and pick each row's account by it."""
        if batch.phase_slots is None:
            return StepAccounts(batch.account, None, None)
        thinking = self._phases.thinking(batch.phase_slots)
        account = batch.account
        if batch.answer is not None:
            account = AccountRows(
                *(torch.where(thinking, *pair) for pair in zip(batch.account, batch.answer, strict=True))
            )
        return StepAccounts(account, thinking, batch.phase_slots)

    def in_scope(self, blocks: DraftBlocks, rows: StepAccounts) -> Tensor | None:
        """Where exceptions may be made: [R, K] bool, or None for everywhere."""
        if self.markers is None or rows.thinking is None:
            return None
        draft_ids = pad_rows(blocks.draft_ids, blocks.cu_num_draft, blocks.width, -1)
        if self.per_phase:
            return before_marker(draft_ids, self.markers)
        return in_reasoning(draft_ids, rows.thinking, self.markers)

    @property
    def reads_output(self) -> bool:
        """Whether :meth:`settle` looks at what a step emitted."""
        return self._refills or self.markers is not None

    def settle(self, rows: StepAccounts, charged: Tensor | None, emitted_ids: Tensor) -> Tensor | None:
        """Charge a step, credit its refill, and follow the phases through what it emitted.

        Args:
            rows: The whole step's.
            charged: [R] float64, nats; None when the step verified no drafts.
            emitted_ids: [R, W] int, padded with -1; looked at if :attr:`reads_output`.

        Returns:
            [R] float64, what each row's account has paid so far, in nats; None when nothing was to be done.
        """
        if self.markers is not None and rows.phase_slots is not None and rows.thinking is not None:
            self._phases.follow(rows.phase_slots, emitted_ids, self.markers, rows.thinking)
        emitted = (emitted_ids >= 0).sum(1) if self._refills else None
        if charged is None:
            if emitted is None:
                return None
            charged = torch.zeros_like(rows.account.gate)
        return self.ledger.charge(rows.account.slots, charged, emitted)

    def _rows(self, ids: Sequence[Hashable]) -> AccountRows:
        slots = self.ledger.slots(ids)
        view = self.ledger.view(slots)
        # A column of the ledger's rows; the kernels want it dense.
        return AccountRows(slots, view.gate.contiguous(), view.block_cap, view.shadow)


def _answer_id(request_id: str) -> tuple[str, str]:
    """The key of a request's second account; no request id, whatever a client sends, equals it."""
    return (request_id, "answer")
