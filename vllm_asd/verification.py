"""What happens to a step's drafts, whichever runner brings them: limits in, decisions out, ledger charged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels import DraftBlocks, Outcome, RowLimits, pad_rows, verify_drafts, warm_up
from vllm_asd.ledger import RegretLedger
from vllm_asd.phase import PhaseTable, ThinkMarkers, in_reasoning, starts_thinking
from vllm_asd.telemetry.exception_detail import exception_detail
from vllm_asd.telemetry.step_report import StepReport

_NO_IDS = np.zeros(0, dtype=np.int64)


class CoupledRows(NamedTuple):
    """Which of a step's R rows are sampled requests that ASD verifies against a sample.

    Attributes:
        flags: [R], on the host.
        mask: [R] bool, on the device.
    """

    flags: list[bool]
    mask: Tensor


class _Batch(NamedTuple):
    """What R rows keep from step to step, until the batch changes or a request comes or goes.

    Attributes:
        request_ids: In batch order.
        known: The same, None for those that have no entry.
        slots: [R] int64, in the ledger.
        phase_slots: [R] int64, or None when phases are not followed.
        gate: [R] float64.
        block_cap: [R] int32.
        shadow: [R] bool.
        protected_ids: [R, S] int64, padded with -1.
        coupled: None when no row is.
    """

    request_ids: list[str]
    known: list[str | None]
    slots: Tensor
    phase_slots: Tensor | None
    gate: Tensor
    block_cap: Tensor
    shadow: Tensor
    protected_ids: Tensor
    coupled: CoupledRows | None

    def rows(self, first: int, number: int) -> _Batch:
        """Some consecutive rows.

        Raises:
            RuntimeError: The batch does not have them.
        """
        if first == 0 and number == len(self.known):
            return self
        if first + number > len(self.known):
            raise RuntimeError(f"drafts for {number} rows from row {first} of a step of {len(self.known)}")
        chunk = slice(first, first + number)
        return _Batch(
            request_ids=self.request_ids[chunk],
            known=self.known[chunk],
            slots=self.slots[chunk],
            phase_slots=None if self.phase_slots is None else self.phase_slots[chunk],
            gate=self.gate[chunk],
            block_cap=self.block_cap[chunk],
            shadow=self.shadow[chunk],
            protected_ids=self.protected_ids[chunk],
            coupled=self.coupled and CoupledRows(self.coupled.flags[chunk], self.coupled.mask[chunk]),
        )


@dataclass
class _Step:
    """The rows of the step under way, and the decisions so far: one outcome per chunk of rows, in order."""

    batch: _Batch
    chunks: list[Outcome] = field(default_factory=list)
    details: list[Tensor] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome | None:
        """The decisions for all rows; None when the step verifies no drafts."""
        if len(self.chunks) < 2:
            return self.chunks[0] if self.chunks else None
        return Outcome(*(torch.cat(columns) for columns in zip(*self.chunks, strict=True)))


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
            markers: The model's think tokens; needed when ``asd_scope`` is "reasoning".
            detailed: Report each exception's token and log-probability too, which reads its logits again.

        Raises:
            ValueError: ``asd_scope`` is "reasoning" and there are no markers.
        """
        if config.asd_scope == "reasoning" and markers is None:
            raise ValueError("asd_scope='reasoning' needs the model's think tokens")
        self.config = config
        self._detailed = detailed
        self.ledger = RegretLedger(capacity, device, pin_memory=device.type == "cuda")
        self._markers = markers if config.asd_scope == "reasoning" else None
        self._phases = PhaseTable(capacity, device, pin_memory=device.type == "cuda")
        self._protected: dict[str, np.ndarray] = {}
        self._limits: dict[str, RequestLimits] = {}
        self._sampled: set[str] = set()
        self._batch: _Batch | None = None
        self._step: _Step | None = None
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
        if request_id in self.ledger:
            if limits != self._limits[request_id] or sampled != (request_id in self._sampled):
                # A later chunk of a streaming session. Its limits hold from here on, its account goes on.
                self._batch = None
                self._limits[request_id] = limits
                self._note_sampling(request_id, sampled)
                self.ledger.amend(request_id, limits)
            return
        if limits.is_strict:
            return
        self._batch = None
        self._limits[request_id] = limits
        self._note_sampling(request_id, sampled)
        self.ledger.admit(request_id, limits)
        protected = set(stop_ids) if self.config.asd_protect == "stop" else set()
        if self._markers is not None:
            protected.update(self._markers)
            self._phases.admit(request_id, starts_thinking(prompt_ids, self._markers))
        self._protected[request_id] = np.array(
            sorted(token for token in protected if token >= 0), dtype=np.int64
        )

    def release(self, request_ids: Iterable[str]) -> None:
        """Close the entries of finished and aborted requests; unknown ids are ignored."""
        gone = [request_id for request_id in request_ids if request_id in self.ledger]
        if not gone:
            return
        self.ledger.release(gone)
        self._phases.release(gone)
        self._batch = None
        for request_id in gone:
            del self._protected[request_id], self._limits[request_id]
            self._sampled.discard(request_id)

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
            if not any(request_id in self.ledger for request_id in ids):
                return False
            self._batch = self._gather(ids)
        self._step = _Step(self._batch)
        return True

    def coupled_rows(self, first_row: int = 0, number: int | None = None) -> CoupledRows | None:
        """Which rows of the step under way are to be perturbed before :meth:`relax`.

        Args:
            first_row: Where the rows asked for begin.
            number: How many; None: all from there on.

        Returns:
            None when there are none.
        """
        if self._step is None or self._step.batch.coupled is None:
            return None
        batch = self._step.batch
        coupled = batch.rows(first_row, len(batch.known) - first_row if number is None else number).coupled
        return coupled if coupled is not None and any(coupled.flags) else None

    def rehearse(self, num_rows: int) -> None:
        """Start a step of rows that belong to no request: it runs what a step runs and touches no entry."""
        self._batch = None
        self._step = _Step(self._gather([""] * num_rows))

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
        batch = step.batch.rows(first_row, blocks.cu_num_draft.shape[0])
        in_scope = self._in_scope(blocks, batch.phase_slots)
        if acceptable is not None:
            in_scope = acceptable if in_scope is None else in_scope & acceptable
        rows = RowLimits(
            remaining=self.ledger.remaining(batch.slots),
            gate=batch.gate,
            block_cap=batch.block_cap,
            shadow=batch.shadow,
            protected_ids=batch.protected_ids,
            in_scope=in_scope,
            pricing=self.config.asd_pricing,
        )
        outcome = verify_drafts(blocks, rows)
        step.chunks.append(outcome)
        if self._detailed:
            step.details.append(exception_detail(blocks, outcome, self.config.asd_block_cap))

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
        outcome, batch = step.outcome, step.batch
        refills = self.config.asd_refill > 0
        if outcome is None and not refills and self._markers is None:
            return None
        if discarded is not None and (refills or self._markers is not None):
            emitted_ids = emitted_ids.masked_fill(discarded.unsqueeze(1), -1)
        if self._markers is not None and batch.phase_slots is not None:
            self._phases.follow(batch.phase_slots, emitted_ids, self._markers)
        emitted = (emitted_ids >= 0).sum(1) if refills else None
        if outcome is None:
            self.ledger.charge(batch.slots, torch.zeros_like(batch.gate), emitted)
            return None
        spent = self.ledger.charge(batch.slots, outcome.charged, emitted)
        detail = torch.cat(step.details) if step.details else None
        return StepReport.start(batch.known, outcome, spent, batch.shadow, detail)

    def _note_sampling(self, request_id: str, sampled: bool) -> None:
        if sampled:
            self._sampled.add(request_id)
        else:
            self._sampled.discard(request_id)

    def _coupled(self, request_ids: list[str]) -> CoupledRows | None:
        if not self._sampled:
            return None
        # A session's chunk may be both sampled and strict: it is vLLM's.
        flags = [i in self._sampled and not self._limits[i].is_strict for i in request_ids]
        return CoupledRows(flags, self.ledger.upload(flags, torch.bool)) if any(flags) else None

    def _gather(self, request_ids: list[str]) -> _Batch:
        slots = self.ledger.slots(request_ids)
        limits = self.ledger.view(slots)
        sets = [self._protected.get(request_id, _NO_IDS) for request_id in request_ids]
        # In numpy: a client may send its whole vocabulary as stop tokens, and every row is padded to that.
        padded = np.full((len(sets), max(map(len, sets))), -1, dtype=np.int64)
        for row, ids in zip(padded, sets, strict=True):
            row[: len(ids)] = ids
        return _Batch(
            request_ids=request_ids,
            known=[request_id if request_id in self.ledger else None for request_id in request_ids],
            slots=slots,
            phase_slots=None if self._markers is None else self._phases.slots(request_ids),
            # A column of the ledger's rows; the kernels want it dense.
            gate=limits.gate.contiguous(),
            block_cap=limits.block_cap,
            shadow=limits.shadow,
            protected_ids=self.ledger.upload(padded, torch.int64),
            coupled=self._coupled(request_ids),
        )

    def _in_scope(self, blocks: DraftBlocks, phase_slots: Tensor | None) -> Tensor | None:
        if self._markers is None or phase_slots is None:
            return None
        thinking = self._phases.thinking(phase_slots)
        draft_ids = pad_rows(blocks.draft_ids, blocks.cu_num_draft, blocks.width, -1)
        return in_reasoning(draft_ids, thinking, self._markers)
