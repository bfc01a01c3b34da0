"""Which implementation runs where."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels.blocks import MaximaBlocks, verify_maxima_reference
from vllm_asd.kernels.charge import charge_accounts_reference
from vllm_asd.kernels.detail import exception_details_reference
from vllm_asd.kernels.guards import follow_guards_reference
from vllm_asd.kernels.outcome import Outcome
from vllm_asd.kernels.phases import ThinkMarkers, draft_scope_reference, follow_phases_reference
from vllm_asd.kernels.verify import DraftBlocks, RowLimits, verify_drafts_reference

logger = logging.getLogger("vllm.vllm_asd")


class _Kernels(NamedTuple):
    verify_drafts: Callable[[DraftBlocks, RowLimits, Outcome], None] = verify_drafts_reference
    verify_maxima: Callable[[MaximaBlocks, RowLimits, Outcome, float], None] = verify_maxima_reference
    charge: Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor], Tensor] = charge_accounts_reference
    details: Callable[[DraftBlocks | MaximaBlocks, Outcome], None] = exception_details_reference
    draft_scope: Callable[[DraftBlocks | MaximaBlocks, Tensor, ThinkMarkers, bool, int], Tensor] = (
        draft_scope_reference
    )
    follow_phases: Callable[
        [Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor, ThinkMarkers], None
    ] = follow_phases_reference
    follow_guards: Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Outcome | None], None] = (
        follow_guards_reference
    )


_REFERENCE = _Kernels()


def verify_drafts(blocks: DraftBlocks, rows: RowLimits, outcome: Outcome) -> None:
    """Decide one step with the fastest implementation for the device of ``blocks``.

    Same contract as :func:`verify_drafts_reference`, with the same results bit for bit.
    """
    _kernels(blocks.logits.device.type).verify_drafts(blocks, rows, outcome)


def verify_maxima(blocks: MaximaBlocks, rows: RowLimits, outcome: Outcome, largest_regret: float) -> None:
    """Decide one step from block maxima; see :func:`vllm_asd.kernels.blocks.verify_maxima_reference`."""
    _kernels(blocks.logits.device.type).verify_maxima(blocks, rows, outcome, largest_regret)


def charge_accounts(
    accounts: Tensor, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None, spent: Tensor
) -> Tensor:
    """Charge one step; :func:`charge_accounts_reference`'s contract, with the same results bit for bit."""
    return _kernels(accounts.device.type).charge(accounts, slots, charged, emitted_tokens, spent)


def exception_details(blocks: DraftBlocks | MaximaBlocks, outcome: Outcome) -> None:
    """Look exceptions up; :func:`exception_details_reference`'s contract, to rounding."""
    _kernels(blocks.logits.device.type).details(blocks, outcome)


def draft_scope(
    blocks: DraftBlocks | MaximaBlocks, thinking: Tensor, markers: ThinkMarkers, per_phase: bool, width: int
) -> Tensor:
    """Say where exceptions may be made; :func:`draft_scope_reference`'s contract."""
    return _kernels(thinking.device.type).draft_scope(blocks, thinking, markers, per_phase, width)


def follow_phases(
    state: Tensor,
    slots: Tensor,
    ids: Tensor,
    num_tokens: Tensor | None,
    discarded: Tensor | None,
    thinking: Tensor,
    markers: ThinkMarkers,
) -> None:
    """Move phases through what a step emitted; :func:`follow_phases_reference`'s contract."""
    kernels = _kernels(state.device.type)
    kernels.follow_phases(state, slots, ids, num_tokens, discarded, thinking, markers)


def follow_guards(
    state: Tensor,
    slots: Tensor,
    ids: Tensor,
    num_tokens: Tensor | None,
    discarded: Tensor | None,
    outcome: Outcome | None,
) -> None:
    """Show guards what a step emitted; :func:`follow_guards_reference`'s contract, with the same bits."""
    _kernels(state.device.type).follow_guards(state, slots, ids, num_tokens, discarded, outcome)


def load(device: torch.device) -> None:
    """Import, and on a CPU compile, what runs on a device: no request should wait for it."""
    _kernels(device.type)


@functools.cache
def _kernels(device_type: str) -> _Kernels:
    if device_type == "cpu":
        return _load_cpu()
    return _load_triton() if device_type == "cuda" else _REFERENCE


def _load_cpu() -> _Kernels:
    try:
        from vllm_asd.kernels import cpu
    except ImportError as error:
        logger.warning("ASD: decides in plain torch, which is slower at small batches: %s", error)
        return _REFERENCE
    cpu.warm_up()
    return _REFERENCE._replace(verify_drafts=cpu.verify_drafts_cpu, charge=cpu.charge_accounts_cpu)


def _load_triton() -> _Kernels:
    try:
        from vllm_asd.kernels import (
            triton_charge,
            triton_detail,
            triton_guards,
            triton_phases,
            triton_verify,
        )
    except ImportError as error:
        logger.warning("ASD: decides in plain torch, with more launches per step: %s", error)
        return _REFERENCE
    return _Kernels(
        verify_drafts=triton_verify.verify_drafts_triton,
        verify_maxima=triton_verify.verify_maxima_triton,
        charge=triton_charge.charge_accounts_triton,
        details=triton_detail.exception_details_triton,
        draft_scope=triton_phases.draft_scope_triton,
        follow_phases=triton_phases.follow_phases_triton,
        follow_guards=triton_guards.follow_guards_triton,
    )
