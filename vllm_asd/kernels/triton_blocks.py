"""Triton versions of :mod:`.blocks`: same functions, same results. Imports no vLLM."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_asd.kernels.blocks import VOCAB_BLOCK, Alignment, BlockMaxima
from vllm_asd.kernels.verify import DraftBlocks


@triton.jit
def _scan_kernel(value_ptr, id_ptr, logits_ptr, logits_stride, vocab_size, num_blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(
        logits_ptr + row * logits_stride + token, mask=token < vocab_size, other=float("-inf")
    ).to(tl.float32)
    value, index = tl.max(logits, axis=0, return_indices=True)
    tl.store(value_ptr + row * num_blocks + block, value)
    tl.store(id_ptr + row * num_blocks + block, (block * BLOCK + index).to(tl.int64))


def scan_blocks(logits: Tensor, block: int = VOCAB_BLOCK) -> BlockMaxima:
    """See :func:`.blocks.scan_blocks`; ``block`` is a power of two."""
    num_rows, vocab_size = logits.shape
    num_blocks = triton.cdiv(vocab_size, block)
    value = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=logits.device)
    token_id = torch.empty(num_rows, num_blocks, dtype=torch.int64, device=logits.device)
    if num_rows:
        _scan_kernel[(num_rows, num_blocks)](
            value, token_id, logits, logits.stride(0), vocab_size, num_blocks, BLOCK=block
        )
    return BlockMaxima(value, token_id)


# A chunk of a step begins anywhere in the drafts, which must not make Triton compile anew.
@triton.jit(do_not_specialize_on_alignment=["draft_sampled_ptr", "cu_num_logits_ptr"])
def _align_kernel(  # type: ignore[no-untyped-def]
    best_ptr,
    argmax_ptr,
    draft_ids_ptr,
    value_ptr,
    value_stride,
    id_ptr,
    id_stride,
    draft_sampled_ptr,
    cu_num_logits_ptr,
    num_blocks,
    WIDTH: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    request = tl.program_id(0)
    start = tl.load(cu_num_logits_ptr + request).to(tl.int64)
    length = tl.load(cu_num_logits_ptr + request + 1).to(tl.int64) - start
    position = tl.arange(0, WIDTH)
    block = tl.arange(0, NUM_BLOCKS)
    in_row = position < length
    row = start + position
    value = tl.load(
        value_ptr + row[:, None] * value_stride + block[None, :],
        mask=in_row[:, None] & (block < num_blocks)[None, :],
        other=float("-inf"),
    )
    # NaN would make argmax return an index outside the blocks.
    best = tl.argmax(tl.where(value == value, value, float("-inf")), axis=1)
    argmax = tl.load(id_ptr + row * id_stride + best, mask=in_row, other=-1)
    draft = tl.load(draft_sampled_ptr + row + 1, mask=position < length - 1, other=-1)
    tl.store(best_ptr + row, best.to(tl.int64), mask=in_row)
    tl.store(argmax_ptr + row, argmax.to(tl.int64), mask=in_row)
    tl.store(draft_ids_ptr + row, draft.to(tl.int64), mask=in_row)


def align(maxima: BlockMaxima, draft_sampled: Tensor, cu_num_logits: Tensor, width: int) -> Alignment:
    """See :func:`.blocks.align`."""
    num_rows, num_blocks = maxima.value.shape
    device = draft_sampled.device
    alignment = Alignment(*(torch.empty(num_rows, dtype=torch.int64, device=device) for _ in range(3)))
    num_requests = cu_num_logits.shape[0] - 1
    if num_requests:
        _align_kernel[(num_requests,)](
            alignment.best,
            alignment.argmax,
            alignment.draft_ids,
            maxima.value,
            maxima.value.stride(0),
            maxima.token_id,
            maxima.token_id.stride(0),
            draft_sampled,
            cu_num_logits,
            num_blocks,
            WIDTH=triton.next_power_of_2(width),
            NUM_BLOCKS=triton.next_power_of_2(num_blocks),
        )
    return alignment


@triton.jit
def _nan_kernel(  # type: ignore[no-untyped-def]
    free_ptr,
    logits_ptr,
    logits_stride,
    argmax_ptr,
    draft_ids_ptr,
    cu_num_draft_ptr,
    vocab_size,
    width,
    largest_regret,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    position = tl.program_id(1)
    start = tl.load(cu_num_draft_ptr + request - 1, mask=request > 0, other=0).to(tl.int64)
    row = start + position
    if row < tl.load(cu_num_draft_ptr + request):
        draft = tl.load(draft_ids_ptr + row).to(tl.int64)
        target = tl.load(argmax_ptr + row)
        if (draft >= 0) & (draft < vocab_size) & (draft != target):
            logits_row = logits_ptr + row * logits_stride
            target = tl.minimum(tl.maximum(target, 0), vocab_size - 1)
            high = tl.load(logits_row + target).to(tl.float32)
            gap = high - tl.load(logits_row + draft).to(tl.float32)
            if (gap >= 0) & (gap <= largest_regret):
                token = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
                # The interpreter holds bfloat16 as bits, which equal themselves.
                logits = tl.load(logits_row + token, mask=token < vocab_size, other=0.0).to(tl.float32)
                if tl.max((logits != logits).to(tl.int32), axis=0) > 0:
                    tl.store(free_ptr + request * width + position, 0)


def free_of_nan(blocks: DraftBlocks, largest_regret: float) -> Tensor:
    """See :func:`.blocks.free_of_nan`."""
    num_requests, vocab_size = blocks.cu_num_draft.shape[0], blocks.logits.shape[1]
    free = torch.ones(num_requests, blocks.width, dtype=torch.uint8, device=blocks.logits.device)
    if free.numel():
        _nan_kernel[(num_requests, blocks.width, triton.cdiv(vocab_size, VOCAB_BLOCK))](
            free,
            blocks.logits,
            blocks.logits.stride(0),
            blocks.argmax,
            blocks.draft_ids,
            blocks.cu_num_draft,
            vocab_size,
            blocks.width,
            largest_regret,
            BLOCK=VOCAB_BLOCK,
        )
    return free.view(torch.bool)
