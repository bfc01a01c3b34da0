"""What happens to a step's drafts, whichever runner brings them: limits in, decisions out, ledger charged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels import DraftBlocks, Outcome, RowLimits, pad_rows, verify_drafts
from vllm_asd.ledger import RegretLedger
from vllm_asd.phase import PhaseTable, ThinkMarkers, in_reasoning, starts_thinking
from vllm_asd.telemetry.step_report import StepReport


@dataclass
class _Step:
    """The rows of the step under way; `outcome` appears when the step verifies drafts."""

    request_ids: list[str]
    slots: Tensor
    outcome: Outcome | None = None


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
    ) -> None:
        """Allocate the state.

        Args:
            config: The server's settings.
            device: Where the logits live.
            capacity: Requests to make room for at first.
            markers: The model's think tokens; needed when ``asd_scope`` is "reasoning".

        Raises:
            ValueError: ``asd_scope`` is "reasoning" and there are no markers.
        """
        if config.asd_scope == "reasoning" and markers is None:
            raise ValueError("asd_scope='reasoning' needs the model's think tokens")
        self.config = config
        self.ledger = RegretLedger(capacity, device, pin_memory=device.type == "cuda")
        self._markers = markers if config.asd_scope == "reasoning" else None
        self._phases = PhaseTable(capacity, device, pin_memory=device.type == "cuda")
        self._protected: dict[str, tuple[int, ...]] = {}
        self._protected_rows: tuple[list[str], Tensor] | None = None
        self._step: _Step | None = None

    def admit(
        self,
        request_id: str,
        limits: RequestLimits,
        stop_ids: Iterable[int] = (),
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        """Open a request's entry; one that is there already (preempted, resumed) keeps what it spent.

        A strict request gets none: unknown ids are strict. The caller passes no sampled request (temperature
        above 0): those stay vLLM's.
        """
        if limits.is_strict or request_id in self.ledger:
            return
        self.ledger.admit(request_id, limits)
        protected = set(stop_ids) if self.config.asd_protect == "stop" else set()
        if self._markers is not None:
            protected.update(self._markers)
            self._phases.admit(request_id, starts_thinking(prompt_ids, self._markers))
        self._protected[request_id] = tuple(sorted(protected))

    def release(self, request_ids: Iterable[str]) -> None:
        """Close the entries of finished and aborted requests; unknown ids are ignored."""
        gone = [request_id for request_id in request_ids if request_id in self.ledger]
        if not gone:
            return
        self.ledger.release(gone)
        self._phases.release(gone)
        self._protected_rows = None
        for request_id in gone:
            del self._protected[request_id]

    def begin(self, request_ids: Sequence[str]) -> bool:
        """Start a step.

        Args:
            request_ids: R ids in batch order.

        Returns:
            Whether any row may be relaxed; if not, the step is vLLM's alone.
        """
        self._step = None
        if not any(request_id in self.ledger for request_id in request_ids):
            return False
        self._step = _Step(list(request_ids), self.ledger.slots(request_ids))
        return True

    def relax(self, blocks: DraftBlocks) -> None:
        """Decide the step under way and rewrite ``blocks.argmax`` at the approved positions.

        Args:
            blocks: The step's drafts, one row per id given to :meth:`begin`.
        """
        step = self._step
        if step is None or blocks.cu_num_draft.shape[0] != len(step.request_ids):
            return
        view = self.ledger.view(step.slots)
        rows = RowLimits(
            remaining=view.remaining,
            gate=view.gate,
            block_cap=view.block_cap,
            shadow=view.shadow,
            protected_ids=self._protected_ids(step.request_ids),
            in_scope=self._in_scope(blocks, step.request_ids),
            pricing=self.config.asd_pricing,
        )
        step.outcome = verify_drafts(blocks, rows)

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
        if step.outcome is None and self.config.asd_refill == 0 and self._markers is None:
            return None
        if discarded is not None:
            emitted_ids = emitted_ids.masked_fill(discarded.unsqueeze(1), -1)
        emitted = (emitted_ids >= 0).sum(1)
        charged = torch.zeros_like(emitted, dtype=torch.float64)
        if step.outcome is not None:
            charged = step.outcome.charged
        self.ledger.charge(step.slots, charged, emitted)
        self._follow_phase(step.request_ids, emitted_ids)
        if step.outcome is None:
            return None
        known = [request_id if request_id in self.ledger else None for request_id in step.request_ids]
        return StepReport.start(known, step.outcome, self.ledger.view(step.slots))

    def _protected_ids(self, request_ids: list[str]) -> Tensor:
        """[R, S] int64, padded with -1; kept while the batch stays the same."""
        if self._protected_rows is not None and self._protected_rows[0] == request_ids:
            return self._protected_rows[1]
        sets = [self._protected.get(request_id, ()) for request_id in request_ids]
        longest = max(map(len, sets), default=0)
        padded = [ids + (-1,) * (longest - len(ids)) for ids in sets]
        rows = self.ledger.upload(padded, torch.int64).reshape(len(sets), longest)
        self._protected_rows = (request_ids, rows)
        return rows

    def _in_scope(self, blocks: DraftBlocks, request_ids: list[str]) -> Tensor | None:
        if self._markers is None:
            return None
        thinking = self._phases.thinking(self._phases.slots(request_ids))
        draft_ids = pad_rows(blocks.draft_ids, blocks.cu_num_draft, blocks.width, -1)
        return in_reasoning(draft_ids, thinking, self._markers)

    def _follow_phase(self, request_ids: list[str], emitted_ids: Tensor) -> None:
        if self._markers is not None:
            self._phases.follow(self._phases.slots(request_ids), emitted_ids, self._markers)
