"""What happens to a step's drafts, whichever runner brings them: limits in, decisions out, ledger charged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vllm_asd.accounts import Accounts
from vllm_asd.batch import Batch, CoupledRows, Step, padded_ids
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.guard import GuardedRows, GuardTable
from vllm_asd.kernels import DraftBlocks, Outcome, RowLimits, verify_drafts, warm_up
from vllm_asd.phase import ThinkMarkers
from vllm_asd.telemetry.exception_detail import exception_detail
from vllm_asd.telemetry.step_report import StepReport

_NO_IDS = np.zeros(0, dtype=np.int64)


class _Request(NamedTuple):
    """What the host knows of a request that has an entry.

    Attributes:
        limits: In force now.
        sampled: Whether its temperature is above 0.
        protected_ids: [S] int64.
        prompt_length: Tokens.
    """

    limits: RequestLimits
    sampled: bool
    protected_ids: np.ndarray
    prompt_length: int

    @property
    def is_coupled(self) -> bool:
        """Whether it is verified against a sample. A session's chunk may be sampled and strict: vLLM's."""
        return self.sampled and not self.limits.is_strict


class Verifier:
    """The rule, the ledger and the report for one engine worker.

    A runner's seam calls, per step: :meth:`release` and :meth:`admit` from the scheduler's output,
    :meth:`begin` before sampling, :meth:`relax` between the target's argmax and vLLM's own acceptance kernel,
    and :meth:`finish` with the emitted tokens. Nothing here waits for the device.
    """

    def __init__(
        self,
        config: AsdConfig,
        device: torch.device,
        capacity: int,
        markers: ThinkMarkers | None = None,
        detailed: bool = False,
    ) -> None:
        """Allocate the state.

        Args:
            config: The server's settings.
            device: Where the logits live.
            capacity: Requests to make room for at first.
            markers: The model's think tokens; needed unless ``asd_scope`` is "all".
            detailed: Report each exception's token and log-probability too, which reads its logits again.

        Raises:
            ValueError: ``asd_scope`` is not "all" and there are no markers.
        """
        self.config = config
        self._detailed = detailed
        self._accounts = Accounts(config, device, capacity, markers)
        self.ledger = self._accounts.ledger
        guarded = capacity if config.asd_guard == "on" else 1
        self._guards = GuardTable(guarded, device, pin_memory=device.type == "cuda")
        self._requests: dict[str, _Request] = {}
        self._batch: Batch | None = None
        self._step: Step | None = None
        warm_up(device)

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
                self._requests[request_id] = known = known._replace(prompt_length=prompt_length)
                self._accounts.extend_prompt(request_id, prompt_ids)
            if (limits, sampled) != (known.limits, known.sampled):
                # A later chunk of a streaming session. Its limits hold from here on, its account goes on.
                self._batch = None
                self._requests[request_id] = known._replace(limits=limits, sampled=sampled)
                self._accounts.amend(request_id, limits)
                self._guard(request_id, limits)
            return
        if limits.is_strict:
            return
        self._batch = None
        self._accounts.admit(request_id, limits, prompt_ids)
        self._guard(request_id, limits)
        self._requests[request_id] = _Request(limits, sampled, self._protected(stop_ids), prompt_length)

    def release(self, request_ids: Iterable[str]) -> None:
        """Close the entries of finished and aborted requests; unknown ids are ignored."""
        gone = [request_id for request_id in request_ids if self._requests.pop(request_id, None) is not None]
        if gone:
            self._batch = None
            self._accounts.release(gone)
            self._guards.release(gone)

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
        if self._step is None or self._step.rows.coupled is None:
            return None
        rows = self._step.rows
        coupled = rows.rows(first_row, len(rows.known) - first_row if number is None else number).coupled
        return coupled if coupled is not None and any(coupled.flags) else None

    def rehearse(self, num_rows: int) -> None:
        """Start a step of rows that belong to no request: it runs what a step runs and touches no entry."""
        self._batch = None
        self._step = self._start(self._gather([""] * num_rows))

    def relax(self, blocks: DraftBlocks, first_row: int = 0, acceptable: Tensor | None = None) -> None:
        """Decide rows of the step under way and rewrite ``blocks.argmax`` at the approved positions.

        Args:
            blocks: The drafts of consecutive rows, in the order of the ids given to :meth:`begin`. V1 brings
                all rows at once, V2 in chunks.
            first_row: Where in that order they begin.
            acceptable: [R, K] bool, False where no exception may be made, or None.
        """
        step = self._step
        if step is None:
            return
        rows = step.rows.rows(first_row, blocks.cu_num_draft.shape[0])
        in_scope = self._accounts.in_scope(blocks, rows.accounts)
        if acceptable is not None:
            in_scope = acceptable if in_scope is None else in_scope & acceptable
        account = rows.accounts.account
        limits = RowLimits(
            remaining=self.ledger.remaining(account.slots),
            gate=account.gate,
            block_cap=account.block_cap,
            shadow=account.shadow,
            protected_ids=rows.protected_ids,
            in_scope=in_scope,
            pricing=self.config.asd_pricing,
        )
        outcome = verify_drafts(blocks, limits)
        step.chunks.append(outcome)
        if self._detailed:
            step.details.append(exception_detail(blocks, outcome, self.config.largest_block_cap))

    def finish(self, emitted_ids: Tensor, discarded: Tensor | None = None) -> StepReport | None:
        """Charge the step and start its report on the way to the host.

        Args:
            emitted_ids: [R, W] int, what the sampler emitted per row, padded with -1.
            discarded: [R] bool, rows whose tokens vLLM throws away (partial prefills), or None.

        Returns:
            The report of the rows that verified drafts, or None when no row did.
        """
        step, self._step = self._step, None
        if step is None:
            return None
        outcome, rows = step.outcome, step.rows
        if discarded is not None and (step.guarded is not None or self._accounts.reads_output):
            emitted_ids = emitted_ids.masked_fill(discarded.unsqueeze(1), -1)
        guard = self._follow_guarded(step, outcome, emitted_ids)
        charged = None if outcome is None else outcome.charged
        spent = self._accounts.settle(rows.accounts, charged, emitted_ids)
        if outcome is None or spent is None:
            return None
        thinking = rows.accounts.thinking if self._accounts.per_phase else None
        shadow = rows.accounts.account.shadow
        return StepReport.start(rows.known, outcome, spent, shadow, step.detail, thinking, guard)

    def _guard(self, request_id: str, limits: RequestLimits) -> None:
        """Watch a request's output from now on, or no longer."""
        if limits.guard:
            self._guards.admit(request_id)
        else:
            self._guards.release([request_id])

    def _follow_guarded(self, step: Step, outcome: Outcome | None, emitted_ids: Tensor) -> Tensor | None:
        """Show the guards what a step emitted.

        Returns:
            [R] int8, :attr:`BlockReport.guard` of each row; None when none is guarded.
        """
        if step.guarded is None:
            return None
        exceptions = shadow_tokens = None
        if outcome is not None:
            exceptions = outcome.exception_regret >= 0
            shadow_tokens = torch.where(step.rows.accounts.account.shadow, outcome.accepted + 1, -1)
        tripped = self._guards.follow(step.guarded.slots, emitted_ids, exceptions, shadow_tokens)
        return step.guarded.tripped.to(torch.int8) + tripped

    def _protected(self, stop_ids: Iterable[int]) -> np.ndarray:
        """The ids that a request's exceptions leave alone, in order."""
        protected = set(stop_ids) if self.config.asd_protect == "stop" else set()
        protected.update(self._accounts.markers or ())
        return np.array(sorted(token for token in protected if token >= 0), dtype=np.int64)

    def _start(self, batch: Batch) -> Step:
        accounts = self._accounts.at_step(batch.accounts)
        if batch.guard_slots is None:
            return Step.of(batch, accounts, None)
        tripped = self._guards.tripped(batch.guard_slots)
        return Step.of(batch, accounts.closed(tripped), GuardedRows(batch.guard_slots, tripped))

    def _gather(self, request_ids: list[str]) -> Batch:
        found = [self._requests.get(request_id) for request_id in request_ids]
        flags = [request is not None and request.is_coupled for request in found]
        guarded = any(request_id in self._guards for request_id in request_ids)
        protected = padded_ids([_NO_IDS if request is None else request.protected_ids for request in found])
        return Batch(
            request_ids=request_ids,
            known=[i if request is not None else None for i, request in zip(request_ids, found, strict=True)],
            accounts=self._accounts.gather(request_ids),
            protected_ids=self.ledger.upload(protected, torch.int64),
            coupled=CoupledRows(flags, self.ledger.upload(flags, torch.bool)) if any(flags) else None,
            guard_slots=self._guards.slots(request_ids) if guarded else None,
        )
