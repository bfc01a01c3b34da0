"""Triton version of :mod:`.detail`: one launch that takes no memory. Imports no vLLM."""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_asd.kernels.blocks import VOCAB_BLOCK, MaximaBlocks
from vllm_asd.kernels.outcome import NUM_SCALARS, Outcome
from vllm_asd.kernels.triton_jit import jit
from vllm_asd.kernels.verify import DraftBlocks

_SCALARS = tl.constexpr(NUM_SCALARS)


@jit
def _detail_kernel(  # type: ignore[no-untyped-def]
    table_ptr,
    table_stride,
    max_num_draft,
    num_entries,
    logits_ptr,
    logits_stride,
    vocab_size,
    draft_ids_ptr,
    cu_ptr,
    MAXIMA: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1)
    out = table_ptr + row * table_stride
    position = tl.arange(0, WIDTH)
    regret = tl.load(out + _SCALARS + position, mask=position < max_num_draft, other=-1.0)
    is_exception = regret >= 0
    number = tl.cumsum(is_exception.to(tl.int32), axis=0)
    mine = is_exception & (number == entry + 1)
    token = tl.full((), 0, tl.int64)
    logprob = tl.full((), 0.0, tl.float32)
    if tl.max(mine.to(tl.int32), axis=0) > 0:
        here = tl.sum(tl.where(mine, position, 0), axis=0)
        target = tl.load(out + _SCALARS + max_num_draft + here).to(tl.int64)
        if MAXIMA:
            flat = tl.load(cu_ptr + row).to(tl.int64) + here
            token = tl.load(draft_ids_ptr + flat + 1).to(tl.int64)
        else:
            flat = tl.load(cu_ptr + row - 1, mask=row > 0, other=0).to(tl.int64) + here
            token = tl.load(draft_ids_ptr + flat).to(tl.int64)
        logits_row = logits_ptr + flat * logits_stride
        # The target's logit is the row's largest: an exception is granted in no other row.
        high = tl.load(logits_row + target).to(tl.float32)
        total = tl.full((), 0.0, tl.float32)
        for first in range(0, vocab_size, BLOCK):
            at = first + tl.arange(0, BLOCK)
            logits = tl.load(logits_row + at, mask=at < vocab_size, other=float("-inf")).to(tl.float32)
            total += tl.sum(tl.exp(logits - high), axis=0)
        logprob = -tl.log(total)
    details = out + _SCALARS + 2 * max_num_draft
    tl.store(details + entry, token.to(tl.float64))
    tl.store(details + num_entries + entry, logprob.to(tl.float64))


def exception_details_triton(blocks: DraftBlocks | MaximaBlocks, outcome: Outcome) -> None:
    """Look the exceptions up; :func:`.detail.exception_details_reference`'s contract, to rounding."""
    num_rows, num_entries = outcome.table.shape[0], outcome.details.shape[1] // 2
    if not num_rows or not num_entries:
        return
    is_maxima = isinstance(blocks, MaximaBlocks)
    logits = blocks.logits if blocks.logits.stride(1) == 1 else blocks.logits.contiguous()
    _detail_kernel[(num_rows, num_entries)](
        table_ptr=outcome.table,
        table_stride=outcome.table.stride(0),
        max_num_draft=outcome.width,
        num_entries=num_entries,
        logits_ptr=logits,
        logits_stride=logits.stride(0),
        vocab_size=logits.shape[1],
        draft_ids_ptr=blocks.draft_sampled if isinstance(blocks, MaximaBlocks) else blocks.draft_ids,
        cu_ptr=blocks.cu_num_logits if isinstance(blocks, MaximaBlocks) else blocks.cu_num_draft,
        MAXIMA=is_maxima,
        WIDTH=triton.next_power_of_2(max(outcome.width, 1)),
        BLOCK=VOCAB_BLOCK,
    )
