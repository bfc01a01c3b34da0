"""Triton version of :mod:`.charge`: one launch in place of a dozen. Imports no vLLM."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_asd.kernels import accounts as columns
from vllm_asd.kernels.triton_jit import jit

_REMAINING, _GRANTED = tl.constexpr(columns.REMAINING), tl.constexpr(columns.GRANTED)
_BUDGET, _REFILL = tl.constexpr(columns.BUDGET), tl.constexpr(columns.REFILL)


@jit
def _charge_kernel(  # type: ignore[no-untyped-def]
    spent_ptr,
    spent_stride,
    before_ptr,
    accounts_ptr,
    accounts_stride,
    slots_ptr,
    charged_ptr,
    charged_stride,
    emitted_ptr,
    num_rows,
    REFILLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    in_batch = row < num_rows
    slot = tl.load(slots_ptr + row, mask=in_batch, other=0)
    account = accounts_ptr + slot * accounts_stride
    # Slot 0 belongs to nobody; its rows may carry anything.
    known = in_batch & (slot > 0)
    budget = tl.load(account + _BUDGET, mask=known, other=0.0)
    granted = tl.load(account + _GRANTED, mask=known, other=0.0)
    remaining = tl.load(account + _REMAINING, mask=known, other=0.0)
    tl.store(before_ptr + 2 * row, remaining, mask=in_batch)
    tl.store(before_ptr + 2 * row + 1, granted, mask=in_batch)
    charged = tl.load(charged_ptr + row * charged_stride, mask=known, other=0.0)
    after = tl.maximum(remaining - charged, 0.0)
    if REFILLS:
        emitted = tl.load(emitted_ptr + row, mask=known, other=0).to(tl.float64)
        refill = tl.load(account + _REFILL, mask=known, other=0.0)
        refilled = tl.minimum(budget, after + refill * emitted)
        granted += refilled - after
        after = refilled
        tl.store(account + _GRANTED, granted, mask=known)
    tl.store(account + _REMAINING, after, mask=known)
    tl.store(spent_ptr + row * spent_stride, budget + granted - after, mask=in_batch)


def charge_accounts_triton(
    accounts: Tensor, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None, spent: Tensor
) -> Tensor:
    """Charge one step; :func:`.charge.charge_accounts_reference`'s contract, with the same bits."""
    num_rows = slots.shape[0]
    before = torch.empty(num_rows, 2, dtype=torch.float64, device=accounts.device)
    if num_rows:
        _charge_kernel[(triton.cdiv(num_rows, 128),)](
            spent,
            spent.stride(0),
            before,
            accounts,
            accounts.stride(0),
            slots,
            charged,
            charged.stride(0),
            emitted_tokens,
            num_rows,
            REFILLS=emitted_tokens is not None,
            BLOCK=128,
            # A fused multiply-add would round once where torch rounds twice.
            enable_fp_fusion=False,
        )
    return before
