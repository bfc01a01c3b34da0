"""Triton version of :mod:`.guards`: one launch in place of some fifty. Imports no vLLM."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_asd.kernels.outcome import NUM_SCALARS, Column, Outcome
from vllm_asd.kernels.triton_jit import jit
from vllm_asd.policy import guard

_SCALARS = tl.constexpr(NUM_SCALARS)
_ACCEPTED, _SHADOW = tl.constexpr(int(Column.ACCEPTED)), tl.constexpr(int(Column.SHADOW))
_GUARD_TO = tl.constexpr(int(Column.GUARD))
_PERIODS = tl.constexpr(guard.LONGEST_PERIOD)
_WINDOW = tl.constexpr(guard.CLUSTER_WINDOW)
_ROUNDS, _LEAST_TOKENS = tl.constexpr(guard.ROUNDS), tl.constexpr(guard.LEAST_TOKENS)
_MOST_EXCEPTIONS = tl.constexpr(guard.MOST_EXCEPTIONS)


@triton.jit
def _tokens(recent_ptr, ids_ptr, place):  # type: ignore[no-untyped-def]
    """The tokens at some places of the kept ones with the emitted ones behind them."""
    kept = tl.load(recent_ptr + place, mask=place < _PERIODS, other=0.0)
    emitted = tl.load(ids_ptr + place - _PERIODS, mask=place >= _PERIODS, other=0)
    return tl.where(place < _PERIODS, kept, (emitted + 1).to(tl.float64))


@jit
def _guard_kernel(  # type: ignore[no-untyped-def]
    state_ptr,
    state_stride,
    slots_ptr,
    ids_ptr,
    ids_stride,
    num_ids,
    num_tokens_ptr,
    discarded_ptr,
    table_ptr,
    table_stride,
    max_num_draft,
    has_table,
    HAS_NUM_TOKENS: tl.constexpr,
    HAS_DISCARDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    # Slot 0 belongs to nobody and is never written to.
    known = slot > 0
    limit = num_ids
    if HAS_NUM_TOKENS:
        limit = tl.minimum(limit, tl.load(num_tokens_ptr + row))
    if HAS_DISCARDED:
        limit = tl.where(tl.load(discarded_ptr + row) != 0, 0, limit)
    limit = tl.where(known, limit, 0)
    ids_row = ids_ptr + row * ids_stride
    guard = state_ptr + slot * state_stride
    recent, runs_at, flags_at = guard + 1, guard + 1 + _PERIODS, guard + 1 + 2 * _PERIODS
    column = tl.arange(0, _PERIODS)
    latch = tl.load(guard)
    runs = tl.load(runs_at + column)
    count = tl.full((), 0, tl.int32)
    for i in range(limit):
        token = tl.load(ids_row + i)
        emitted = token >= 0
        same = _tokens(recent, ids_row, column + i) == (token + 1).to(tl.float64)
        runs = tl.where(emitted, tl.where(same, runs + 1.0, 0.0), runs)
        count += emitted.to(tl.int32)
    new_recent = _tokens(recent, ids_row, column + count)

    out = table_ptr + row * table_stride
    shadow = tl.load(out + _SHADOW, mask=has_table != 0, other=0.0)
    accepted = tl.load(out + _ACCEPTED, mask=has_table != 0, other=0.0)
    shift = tl.where((shadow != 0) & (count > 0), accepted.to(tl.int32) + 1, count)
    place = tl.arange(0, _WINDOW) + shift
    kept = tl.load(flags_at + place, mask=place < _WINDOW, other=0.0)
    position = place - _WINDOW
    is_draft = (position >= 0) & (position < max_num_draft) & (has_table != 0)
    regret = tl.load(out + _SCALARS + position, mask=is_draft, other=-1.0)
    flags = tl.where(place < _WINDOW, kept, (regret >= 0).to(tl.float64))

    period = _PERIODS - column
    needed = tl.maximum(_ROUNDS * period, _LEAST_TOKENS)
    looping = tl.max((runs + period.to(tl.float64) >= needed.to(tl.float64)).to(tl.int32), axis=0) > 0
    clustered = tl.sum(flags, axis=0) > _MOST_EXCEPTIONS
    tripped = ((latch != 0) | looping | clustered).to(tl.float64)
    # All of the program's loads of the row come before any store to it.
    tl.debug_barrier()
    tl.store(guard, tripped, mask=known)
    tl.store(recent + column, new_recent, mask=known)
    tl.store(runs_at + column, runs, mask=known)
    tl.store(flags_at + tl.arange(0, _WINDOW), flags, mask=known)
    tl.store(out + _GUARD_TO, latch + tl.where(known, tripped, 0.0), mask=has_table != 0)


def follow_guards_triton(
    state: Tensor,
    slots: Tensor,
    ids: Tensor,
    num_tokens: Tensor | None,
    discarded: Tensor | None,
    outcome: Outcome | None,
) -> None:
    """Show guards what a step emitted; :func:`.guards.follow_guards_reference`'s contract and bits."""
    num_rows = slots.shape[0]
    if not num_rows:
        return
    # Any table will do where there is none: without one nothing of it is read.
    table = state if outcome is None else outcome.table
    _guard_kernel[(num_rows,)](
        state_ptr=state,
        state_stride=state.stride(0),
        slots_ptr=slots,
        ids_ptr=ids,
        ids_stride=ids.stride(0),
        num_ids=ids.shape[1],
        num_tokens_ptr=num_tokens,
        discarded_ptr=None if discarded is None else discarded.view(torch.uint8),
        table_ptr=table,
        table_stride=table.stride(0),
        max_num_draft=0 if outcome is None else outcome.width,
        has_table=int(outcome is not None),
        HAS_NUM_TOKENS=num_tokens is not None,
        HAS_DISCARDED=discarded is not None,
        num_warps=1,
    )
