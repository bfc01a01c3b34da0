"""Triton version of :mod:`.phases`: a launch for the drafts and one for what was emitted. Imports no vLLM."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_asd.kernels.blocks import MaximaBlocks
from vllm_asd.kernels.phases import ThinkMarkers
from vllm_asd.kernels.triton_jit import jit
from vllm_asd.kernels.verify import DraftBlocks

_BLOCK = 32


@triton.jit
def _mark(token, position, start_id, end_id):  # type: ignore[no-untyped-def]
    """0 where no marker is, else a number that grows with the place and is odd for the opening one."""
    opens = token == start_id
    return tl.where(opens | (token == end_id), 2 * (position + 1) + opens.to(tl.int32), 0)


@jit
def _scope_kernel(  # type: ignore[no-untyped-def]
    scope_ptr,
    max_num_draft,
    draft_ids_ptr,
    cu_ptr,
    thinking_ptr,
    start_id,
    end_id,
    MAXIMA: tl.constexpr,
    PER_PHASE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, WIDTH)
    if MAXIMA:
        start = tl.load(cu_ptr + row).to(tl.int64)
        length = tl.load(cu_ptr + row + 1).to(tl.int64) - start - 1
        start += 1
    else:
        start = tl.load(cu_ptr + row - 1, mask=row > 0, other=0).to(tl.int64)
        length = tl.load(cu_ptr + row).to(tl.int64) - start
    in_table = position < max_num_draft
    draft = tl.load(draft_ids_ptr + start + position, mask=(position < length) & in_table, other=-1)
    mark = _mark(draft, position, start_id, end_id)
    earlier = position[None, :] < position[:, None]
    last = tl.max(tl.where(earlier, mark[None, :], 0), axis=1)
    if PER_PHASE:
        inside = last == 0
    else:
        thinking = tl.load(thinking_ptr + row).to(tl.int32)
        inside = tl.where(last > 0, last & 1, thinking) != 0
    scope = (inside & (mark == 0)).to(tl.uint8)
    tl.store(scope_ptr + row * max_num_draft + position, scope, mask=in_table)


@jit
def _follow_kernel(  # type: ignore[no-untyped-def]
    state_ptr,
    state_stride,
    slots_ptr,
    ids_ptr,
    ids_stride,
    num_ids,
    num_tokens_ptr,
    discarded_ptr,
    thinking_ptr,
    start_id,
    end_id,
    HAS_NUM_TOKENS: tl.constexpr,
    HAS_DISCARDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    count = num_ids
    if HAS_NUM_TOKENS:
        count = tl.minimum(count, tl.load(num_tokens_ptr + row))
    if HAS_DISCARDED:
        count = tl.where(tl.load(discarded_ptr + row) != 0, 0, count)
    last = tl.full((), 0, tl.int32)
    for first in range(0, num_ids, BLOCK):
        position = first + tl.arange(0, BLOCK)
        token = tl.load(ids_ptr + row * ids_stride + position, mask=position < count, other=-1)
        last = tl.maximum(last, tl.max(_mark(token, position, start_id, end_id), axis=0))
    thinking = tl.load(thinking_ptr + row).to(tl.int32)
    after = tl.where(last > 0, last & 1, thinking)
    slot = tl.load(slots_ptr + row)
    # Slot 0 belongs to nobody.
    tl.store(state_ptr + slot * state_stride, after.to(tl.float64), mask=slot > 0)


def draft_scope_triton(
    blocks: DraftBlocks | MaximaBlocks, thinking: Tensor, markers: ThinkMarkers, per_phase: bool, width: int
) -> Tensor:
    """Say where exceptions may be made; :func:`.phases.draft_scope_reference`'s contract."""
    num_rows = thinking.shape[0]
    scope = torch.empty(num_rows, width, dtype=torch.bool, device=thinking.device)
    is_maxima = isinstance(blocks, MaximaBlocks)
    if num_rows and width:
        _scope_kernel[(num_rows,)](
            scope_ptr=scope.view(torch.uint8),
            max_num_draft=width,
            draft_ids_ptr=blocks.draft_sampled if isinstance(blocks, MaximaBlocks) else blocks.draft_ids,
            cu_ptr=blocks.cu_num_logits if isinstance(blocks, MaximaBlocks) else blocks.cu_num_draft,
            thinking_ptr=thinking.view(torch.uint8),
            start_id=markers.start,
            end_id=markers.end,
            MAXIMA=is_maxima,
            PER_PHASE=per_phase,
            WIDTH=triton.next_power_of_2(width),
            num_warps=1 if width <= 32 else 4,
        )
    return scope


def follow_phases_triton(
    state: Tensor,
    slots: Tensor,
    ids: Tensor,
    num_tokens: Tensor | None,
    discarded: Tensor | None,
    thinking: Tensor,
    markers: ThinkMarkers,
) -> None:
    """Move phases through what was emitted; :func:`.phases.follow_phases_reference`'s contract."""
    if slots.shape[0]:
        _follow_kernel[(slots.shape[0],)](
            state_ptr=state,
            state_stride=state.stride(0),
            slots_ptr=slots,
            ids_ptr=ids,
            ids_stride=ids.stride(0),
            num_ids=ids.shape[1],
            num_tokens_ptr=num_tokens,
            discarded_ptr=None if discarded is None else discarded.view(torch.uint8),
            thinking_ptr=thinking.view(torch.uint8),
            start_id=markers.start,
            end_id=markers.end,
            HAS_NUM_TOKENS=num_tokens is not None,
            HAS_DISCARDED=discarded is not None,
            BLOCK=_BLOCK,
            num_warps=1,
        )
