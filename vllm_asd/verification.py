"""What happens to a step's drafts, whichever runner brings them: limits in, decisions out, ledger charged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.accounts import Accounts, StepAccounts
from vllm_asd.batch import Batch, CoupledRows, Emitted, Step
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.guard import GuardedRows, GuardTable
from vllm_asd.kernels import (
    Column,
    DraftBlocks,
    MaximaBlocks,
    Outcome,
    RowLimits,
    exception_details,
    load,
    verify_drafts,
    verify_maxima,
)
from vllm_asd.phase import ThinkMarkers
from vllm_asd.protected import ProtectedSets
from vllm_asd.step_log import StepLog, StepRecord
from vllm_asd.telemetry.step_report import StepReport

Decide = Callable[[DraftBlocks, RowLimits, Outcome], None]


class DraftShape(NamedTuple):
    """What is known of every step when the worker starts.

    Attributes:
        max_num_draft_tokens: K, the most draft tokens of a block.
        vocab_size: V.
    """

    max_num_draft_tokens: int
    vocab_size: int


class _Request(NamedTuple):
    """What the host knows of a request that has an entry.

    Attributes:
        limits: In force now.
        sampled: Whether its temperature is above 0.
        protected: The row of its set of protected tokens.
        prompt_length: Tokens.
        since_step: The first step that can be taken back: an id may be used again, and a session's next chunk
            may bring other limits. By then the scheduler has said what it kept.
    """

    limits: RequestLimits
    sampled: bool
    protected: int
    prompt_length: int
    since_step: int

    @property
    def is_coupled(self) -> bool:
        """Whether it is verified against a sample."""
        return self.sampled and not self.limits.is_strict

    @property
    def is_decided(self) -> bool:
        """Whether the argmax decides. A session's chunk may be sampled and strict: on V2 it has none."""
        return not self.sampled or self.is_coupled


class Verifier:
    """The rule, the ledger and the report for one engine worker.

    A runner's seam calls, per step and in this order: :meth:`roll_back` for what the scheduler did not keep,
    :meth:`start_step`, :meth:`release`, :meth:`admit`; :meth:`begin` before sampling; :meth:`relax` between
    the target's argmax and vLLM's own acceptance kernel; :meth:`finish` with the emitted tokens. Nothing here
    waits for the device.
    """

    def __init__(
        self,
        config: AsdConfig,
        device: torch.device,
        capacity: int,
        shape: DraftShape,
        markers: ThinkMarkers | None = None,
        detailed: bool = False,
        decide: Decide = verify_drafts,
    ) -> None:
        """Allocate the state.

        Args:
            config: The server's settings.
            device: Where the logits live.
            capacity: Requests to make room for at first.
            shape: The sizes of a step.
            markers: The model's think tokens; needed unless ``asd_scope`` is "all".
            detailed: Report each exception's token and log-probability too, which reads its logits again.
            decide: Decides V1's drafts, by :func:`vllm_asd.kernels.verify_drafts`'s contract. The attribute
                of this name may be replaced between steps: experiments decide by other rules.

        Raises:
            ValueError: ``asd_scope`` is not "all" and there are no markers.
        """
        self.config = config
        self.shape = shape
        self.decide = decide
        self._width = shape.max_num_draft_tokens
        self._num_details = min(config.largest_block_cap, self._width) if detailed else 0
        # q is at most K, and no request's gate is above the server's.
        self._largest_regret = config.largest_gate * self._width
        pinned = device.type == "cuda"
        self._device = device
        self._accounts = Accounts(config, device, capacity, markers)
        self.ledger = self._accounts.ledger
        self._guards = GuardTable(capacity if config.asd_guard == "on" else 1, device, pin_memory=pinned)
        self._protected = ProtectedSets(shape.vocab_size, device, pin_memory=pinned)
        self._requests: dict[str, _Request] = {}
        self._batch: Batch | None = None
        self._step: Step | None = None
        self._step_number: int | None = None
        self._log = StepLog()
        load(device)

    def admit(
        self,
        request_id: str,
        limits: RequestLimits,
        stop_ids: Iterable[int] = (),
        prompt_ids: Sequence[int] | None = None,
        sampled: bool = False,
    ) -> None:
        """Open a request's entry; one that is there already (preempted, resumed) keeps what it spent.

        A strict request gets none: unknown ids are strict. The caller passes a sampled request (temperature
        above 0) that stays vLLM's as strict.
        """
        prompt_length = 0 if prompt_ids is None else len(prompt_ids)
        known = self._requests.get(request_id)
        if known is not None:
            if prompt_length > known.prompt_length:
                # The next chunk of a streaming session; a resumed request comes with the prompt it had.
                self._batch = None
                known = known._replace(prompt_length=prompt_length, since_step=self._coming_step)
                self._requests[request_id] = known
                self._accounts.extend_prompt(request_id, prompt_ids)
            if (limits, sampled) != (known.limits, known.sampled):
                # A later chunk of a streaming session. Its limits hold from here on, its account goes on.
                self._batch = None
                self._requests[request_id] = known._replace(
                    limits=limits, sampled=sampled, since_step=self._coming_step
                )
                self._accounts.amend(request_id, limits)
                self._guard(request_id, limits)
            return
        if limits.is_strict:
            return
        self._batch = None
        self._accounts.admit(request_id, limits, prompt_ids)
        self._guard(request_id, limits)
        protected = self._protected.acquire(self._protected_ids(stop_ids))
        self._requests[request_id] = _Request(limits, sampled, protected, prompt_length, self._coming_step)

    def release(self, request_ids: Iterable[str]) -> None:
        """Close the entries of finished and aborted requests; unknown ids are ignored."""
        gone = []
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is not None:
                gone.append(request_id)
                self._protected.release(request.protected)
        if gone:
            self._batch = None
            self._accounts.release(gone)
            self._guards.release(gone)

    def start_step(self, number: int, committed_through: int) -> None:
        """Number the step that comes, so that the scheduler can say later what it kept of it.

        Before :meth:`admit`, after :meth:`roll_back`.

        Args:
            number: The step's, as the scheduler counts.
            committed_through: The scheduler has said what it kept of the steps up to this one.
        """
        self._step_number = number
        self._log.forget_through(committed_through)

    def roll_back(self, request_id: str, after_step: int, kept_tokens: int | None) -> None:
        """Take back what the scheduler did not keep of a request: charge, refill, phase and guard.

        Args:
            request_id: Unknown ids are ignored.
            after_step: Nothing was kept of the request's steps after this one.
            kept_tokens: Tokens kept of step ``after_step``; None: all of them.
        """
        request = self._requests.get(request_id)
        if request is None:
            return
        since = max(request.since_step, after_step if kept_tokens is not None else after_step + 1)
        for record, row in self._log.take_back(request_id, since, after_step):
            # One by one: not every step charged, and in scope "phases" not all charged the same account.
            guarded = self._undo(record, row)
            if record.number == after_step and kept_tokens:
                outcome = None if record.outcome is None else record.outcome.rows(row, 1).cut(kept_tokens)
                accounts = record.accounts.rows(row, 1)
                self._settle(accounts, guarded, outcome, record.emitted.first(row, kept_tokens))

    def _undo(self, record: StepRecord, row: int) -> GuardedRows | None:
        """Put one row's state back to what it was before a step; returns its guard as it was."""
        before = record.ledger_before
        self._accounts.restore(
            record.accounts.rows(row, 1), None if before is None else before[row : row + 1]
        )
        if record.guard_slots is None or record.guard_before is None:
            return None
        guard_before = record.guard_before[row : row + 1]
        guarded = GuardedRows(record.guard_slots[row : row + 1], guard_before[:, 0] != 0)
        self._guards.restore(guarded.slots, guard_before)
        return guarded

    def begin(self, request_ids: Sequence[str]) -> bool:
        """Start a step.

        Args:
            request_ids: R ids in batch order.

        Returns:
            Whether any row may be relaxed; if not, the step is vLLM's alone.
        """
        self._step = None
        ids = list(request_ids)
        if self._batch is None or self._batch.request_ids != ids:
            if not any(request_id in self._requests for request_id in ids):
                return False
            self._batch = self._gather(ids)
        self._step = self._start(self._batch)
        return True

    def coupled_rows(self, first_row: int = 0, number: int | None = None) -> CoupledRows | None:
        """Which rows of the step under way are to be perturbed before :meth:`relax`.

        Args:
            first_row: Where the rows asked for begin.
            number: How many; None: all from there on.

        Returns:
            None when there are none.
        """
        coupled = None if self._step is None else self._step.batch.coupled
        if coupled is None:
            return None
        return coupled.rows(first_row, len(coupled.flags) - first_row if number is None else number)

    def relax(self, blocks: DraftBlocks | MaximaBlocks) -> None:
        """Decide the next rows of the step under way and rewrite the argmax at the approved positions.

        Args:
            blocks: The drafts of consecutive rows, in the order of the ids given to :meth:`begin`. V1 brings
                all rows at once, V2 in chunks.

        Raises:
            RuntimeError: The step does not have as many rows.
        """
        step = self._step
        if step is None:
            return
        first, number, num_rows = step.decided, blocks.num_rows, len(step.batch.request_ids)
        if first + number > num_rows:
            raise RuntimeError(f"drafts for {number} rows from row {first} of a step of {num_rows}")
        if step.outcome is None:
            step.outcome = Outcome.empty(num_rows, self._width, self._num_details, self._device)
        step.decided += number
        outcome = step.outcome.rows(first, number)
        limits = step.limits.rows(first, number)
        if step.accounts.thinking is not None:
            some = step.accounts.rows(first, number)
            limits = limits._replace(in_scope=self._accounts.in_scope(blocks, some, self._width))
        if isinstance(blocks, MaximaBlocks):
            verify_maxima(blocks, limits, outcome, self._largest_regret)
        else:
            self.decide(blocks, limits, outcome)
        if self._num_details:
            exception_details(blocks, outcome)

    def finish(self, emitted: Emitted) -> StepReport | None:
        """Charge the step and start its report on the way to the host.

        Args:
            emitted: What the sampler emitted.

        Returns:
            The report of the rows that verified drafts, or None when no row did.

        Raises:
            RuntimeError: Some rows of the step were decided, and others were not.
        """
        step, self._step = self._step, None
        if step is None:
            return None
        outcome, num_rows = step.outcome, len(step.batch.request_ids)
        if outcome is not None and step.decided != num_rows:
            raise RuntimeError(f"drafts for {step.decided} of a step's {num_rows} rows")
        guard_before = None
        if step.guarded is not None and self._step_number is not None:
            guard_before = self._guards.rows(step.guarded.slots)
        before = self._settle(step.accounts, step.guarded, outcome, emitted)
        if self._step_number is not None:
            slots = None if step.guarded is None else step.guarded.slots
            ids = step.batch.request_ids
            self._log.append(
                StepRecord(
                    self._step_number, ids, step.accounts, outcome, emitted, before, slots, guard_before
                )
            )
        return None if outcome is None else StepReport.start(step.batch.known, outcome)

    def rehearse(self, run: Callable[[], None], emitted: Emitted) -> None:
        """Run steps of rows that belong to no request, so that all that a step runs is compiled.

        Args:
            run: Brings one step's drafts to :meth:`relax`.
            emitted: That step's tokens.
        """
        self._batch = None
        number, self._step_number = self._step_number, None
        num_rows = emitted.ids.shape[0]
        for guarded in (False, True):
            batch = self._gather([""] * num_rows)
            if guarded:
                batch = batch._replace(guard_slots=torch.zeros_like(batch.accounts.slots))
            self._step = self._start(batch)
            run()
            self.finish(emitted)
        self._step_number = number

    def _settle(
        self, accounts: StepAccounts, guarded: GuardedRows | None, outcome: Outcome | None, emitted: Emitted
    ) -> Tensor | None:
        """Show guards, accounts and phases what a step emitted, and write what the report says of it.

        Returns:
            [R, 2] float64, see :meth:`Accounts.settle`.
        """
        if guarded is not None:
            tokens = (emitted.ids, emitted.num_tokens, emitted.discarded)
            self._guards.settle(guarded.slots, *tokens, outcome)
        before = self._accounts.settle(accounts, outcome, emitted)
        if outcome is not None and self._accounts.per_phase and accounts.thinking is not None:
            outcome.column(Column.THINKING).copy_(accounts.thinking)
        return before

    @property
    def _coming_step(self) -> int:
        return 0 if self._step_number is None else self._step_number

    def _guard(self, request_id: str, limits: RequestLimits) -> None:
        """Watch a request's output from now on, or no longer."""
        if limits.guard:
            self._guards.admit(request_id)
        else:
            self._guards.release([request_id])

    def _protected_ids(self, stop_ids: Iterable[int]) -> Iterable[int]:
        """The ids that a request's exceptions leave alone."""
        markers = self._accounts.markers or ()
        return [*(stop_ids if self.config.asd_protect == "stop" else ()), *markers]

    def _start(self, batch: Batch) -> Step:
        accounts, guarded, limits = self._accounts.at_step(batch.accounts), None, batch.limits
        if batch.guard_slots is not None:
            guarded = GuardedRows(batch.guard_slots, self._guards.tripped(batch.guard_slots))
            limits = limits._replace(closed=guarded.tripped)
        if accounts.slots is not limits.slots:
            limits = limits._replace(slots=accounts.slots)
        return Step(batch, accounts, guarded, limits)

    def _gather(self, request_ids: list[str]) -> Batch:
        found = [self._requests.get(request_id) for request_id in request_ids]
        flags = [request is not None and request.is_coupled for request in found]
        guarded = any(request_id in self._guards for request_id in request_ids)
        sets = [0 if request is None else request.protected for request in found]
        decided = [request is not None and request.is_decided for request in found]
        accounts = self._accounts.gather(request_ids)
        protected = self._protected.of_rows(self.ledger.upload(sets, torch.int64))
        return Batch(
            request_ids=request_ids,
            known=[i if is_decided else None for i, is_decided in zip(request_ids, decided, strict=True)],
            accounts=accounts,
            # The ledger's tensor is another one only when a request has come, which makes another batch.
            limits=RowLimits(
                self.ledger.accounts, accounts.slots, protected, None, None, self.config.asd_pricing
            ),
            coupled=CoupledRows(flags, self.ledger.upload(flags, torch.bool)) if any(flags) else None,
            guard_slots=self._guards.slots(request_ids) if guarded else None,
        )
