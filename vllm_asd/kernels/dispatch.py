"""Which implementation runs where."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels import blocks as block_maxima
from vllm_asd.kernels.blocks import Alignment, BlockMaxima
from vllm_asd.kernels.charge import charge_accounts_reference
from vllm_asd.kernels.verify import DraftBlocks, Outcome, RowLimits, verify_drafts_reference

logger = logging.getLogger("vllm.vllm_asd")


class _Kernels(NamedTuple):
    verify: Callable[[DraftBlocks, RowLimits], Outcome] = verify_drafts_reference
    charge: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = charge_accounts_reference
    align: Callable[[BlockMaxima, Tensor, Tensor, int], Alignment] = block_maxima.align
    free_of_nan: Callable[[DraftBlocks, float], Tensor] = block_maxima.free_of_nan


_REFERENCE = _Kernels()


def verify_drafts(blocks: DraftBlocks, rows: RowLimits) -> Outcome:
    """Decide one step with the fastest implementation for the device of ``blocks``.

    Same contract as :func:`verify_drafts_reference`, with the same results bit for bit.
    """
    return _kernels(blocks.logits.device.type).verify(blocks, rows)


def charge_accounts(
    accounts: Tensor, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None
) -> Tensor:
    """Charge one step; :func:`charge_accounts_reference`'s contract, with the same results bit for bit."""
    return _kernels(accounts.device.type).charge(accounts, slots, charged, emitted_tokens)


def align(maxima: BlockMaxima, draft_sampled: Tensor, cu_num_logits: Tensor, width: int) -> Alignment:
    """Combine block maxima; see :func:`vllm_asd.kernels.blocks.align`."""
    return _kernels(draft_sampled.device.type).align(maxima, draft_sampled, cu_num_logits, width)


def free_of_nan(blocks: DraftBlocks, largest_regret: float) -> Tensor:
    """Look for NaN in near misses; see :func:`vllm_asd.kernels.blocks.free_of_nan`."""
    return _kernels(blocks.logits.device.type).free_of_nan(blocks, largest_regret)


def warm_up(device: torch.device) -> None:
    """Compile what runs on a device, at start-up: no request should wait for it."""
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
    return _Kernels(verify=cpu.verify_drafts_cpu, charge=cpu.charge_accounts_cpu)


def _load_triton() -> _Kernels:
    try:
        from vllm_asd.kernels import triton_blocks, triton_charge, triton_verify
    except ImportError as error:
        logger.warning("ASD: decides in plain torch, with more launches per step: %s", error)
        return _REFERENCE
    return _Kernels(
        verify=triton_verify.verify_drafts_triton,
        charge=triton_charge.charge_accounts_triton,
        align=triton_blocks.align,
        free_of_nan=triton_blocks.free_of_nan,
    )
