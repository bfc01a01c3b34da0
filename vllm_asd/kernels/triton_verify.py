"""The decision in Triton, one program per request. Imports no vLLM.

The logits are read at two places per draft, and whole rows only where a draft is a near miss (to look for NaN
on V2, whose argmax comes out of block maxima). What compiles anew is another type of logits, and another
setting of the server: scope, guard, pricing, K.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vllm_asd.kernels import accounts
from vllm_asd.kernels.blocks import VOCAB_BLOCK, MaximaBlocks
from vllm_asd.kernels.outcome import NUM_SCALARS, Column, Outcome
from vllm_asd.kernels.triton_jit import jit
from vllm_asd.kernels.verify import DraftBlocks, RowLimits, check_pricing

# Triton reads module constants only as constexpr. Values of StopReason, then columns of the accounts and of
# the outcome.
_END, _GATE, _CAP = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_BUDGET, _PROTECTED, _INVALID = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
_REMAINING_OF, _GATE_OF = tl.constexpr(accounts.REMAINING), tl.constexpr(accounts.GATE)
_BLOCK_CAP_OF, _SHADOW_OF = tl.constexpr(accounts.BLOCK_CAP), tl.constexpr(accounts.SHADOW)
_NUM_DRAFT_TO = tl.constexpr(int(Column.NUM_DRAFT))
_ACCEPTED_TO = tl.constexpr(int(Column.ACCEPTED))
_STRICT_TO = tl.constexpr(int(Column.STRICT_ACCEPTED))
_EXCEPTIONS_TO = tl.constexpr(int(Column.EXCEPTIONS))
_REUSED_TO = tl.constexpr(int(Column.REUSED))
_STOP_TO = tl.constexpr(int(Column.STOP))
_CHARGED_TO = tl.constexpr(int(Column.CHARGED))
_SPENT_TO = tl.constexpr(int(Column.SPENT))
_SHADOW_TO = tl.constexpr(int(Column.SHADOW))
_THINKING_TO = tl.constexpr(int(Column.THINKING))
_GUARD_TO = tl.constexpr(int(Column.GUARD))
_SCALARS = tl.constexpr(NUM_SCALARS)


@triton.jit
def _regret(logits_row, draft, target, readable, allowed):  # type: ignore[no-untyped-def]
    """Nats as float64, +inf where not acceptable; see :func:`.reference.score_drafts`."""
    # Masked, not clamped: -1 as an index would read another row's memory.
    high = tl.load(logits_row + target, mask=readable, other=0.0).to(tl.float32)
    low = tl.load(logits_row + draft, mask=readable, other=0.0).to(tl.float32)
    gap = high - low
    return tl.where(readable & allowed & (gap >= 0), gap, float("inf")).to(tl.float64)


@triton.jit
def _holds(words_row, num_words, token, in_row):  # type: ignore[no-untyped-def]
    """Whether a set holds the tokens; see :meth:`.verify.ProtectedIds.hold`."""
    word = token >> 5
    known = in_row & (token >= 0) & (word < num_words)
    bits = tl.load(words_row + word, mask=known, other=0)
    return known & (((bits >> (token & 31).to(tl.int32)) & 1) != 0)


@triton.jit
def _refusal(regret, q, protected, exceptions, spent, gate, block_cap, remaining):  # type: ignore[no-untyped-def]
    """Why a mismatch cannot be kept, in the order of :func:`vllm_asd.policy.stop_reason`; _END: it can."""
    relaxable = (remaining > 0) & (gate > 0) & (block_cap > 0)
    over_gate = tl.where(relaxable, regret / q.to(tl.float64) > gate, (gate > 0) == 0)
    over_cap = tl.where(relaxable, exceptions >= block_cap, (block_cap > 0) == 0)
    over_budget = (relaxable == 0) | (spent + regret > remaining)
    refusal = tl.where(over_budget, _BUDGET, _END)
    refusal = tl.where(over_cap, _CAP, refusal)
    refusal = tl.where(over_gate, _GATE, refusal)
    refusal = tl.where(regret == float("inf"), _INVALID, refusal)
    return tl.where(protected, _PROTECTED, refusal)


@triton.jit
def _combine(max_ptr, max_stride, row, num_blocks, in_row, NUM_BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The block that holds each row's maximum, as vLLM finds it."""
    block = tl.arange(0, NUM_BLOCKS)
    value = tl.load(
        max_ptr + row[:, None] * max_stride + block[None, :],
        mask=in_row[:, None] & (block < num_blocks)[None, :],
        other=float("-inf"),
    )
    # NaN would make argmax return an index outside the blocks.
    return tl.argmax(tl.where(value == value, value, float("-inf")), axis=1)


@jit
def _decide_kernel(  # type: ignore[no-untyped-def]
    table_ptr,
    table_stride,
    max_num_draft,
    argmax_ptr,
    argmax_stride,
    max_ptr,
    max_stride,
    num_blocks,
    nan_ptr,
    logits_ptr,
    logits_stride,
    vocab_size,
    draft_ids_ptr,
    cu_ptr,
    accounts_ptr,
    accounts_stride,
    slots_ptr,
    words_ptr,
    num_words,
    set_ptr,
    closed_ptr,
    in_scope_ptr,
    in_scope_stride,
    MAXIMA: tl.constexpr,
    HAS_CLOSED: tl.constexpr,
    HAS_SCOPE: tl.constexpr,
    REALIZED: tl.constexpr,
    WIDTH: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, WIDTH)
    if MAXIMA:
        start = tl.load(cu_ptr + row).to(tl.int64)
        # Without the bonus row, whose maxima vLLM leaves unwritten.
        length = tl.load(cu_ptr + row + 1).to(tl.int64) - start - 1
    else:
        start = tl.load(cu_ptr + row - 1, mask=row > 0, other=0).to(tl.int64)
        length = tl.load(cu_ptr + row).to(tl.int64) - start
    in_row = (position < length) & (position < max_num_draft)
    flat = start + position
    slot = tl.load(slots_ptr + row)
    account = accounts_ptr + slot * accounts_stride
    remaining = tl.load(account + _REMAINING_OF)
    gate = tl.load(account + _GATE_OF)
    block_cap = tl.load(account + _BLOCK_CAP_OF)
    shadow = tl.load(account + _SHADOW_OF)
    if HAS_CLOSED:
        gate = tl.where(tl.load(closed_ptr + row) != 0, 0.0, gate)

    if MAXIMA:
        best = _combine(max_ptr, max_stride, flat, num_blocks, in_row, NUM_BLOCKS).to(tl.int64)
        place = argmax_ptr + flat * argmax_stride + best
        draft = tl.load(draft_ids_ptr + flat + 1, mask=in_row, other=-1).to(tl.int64)
    else:
        place = argmax_ptr + flat * argmax_stride
        draft = tl.load(draft_ids_ptr + flat, mask=in_row, other=-1).to(tl.int64)
    target = tl.load(place, mask=in_row, other=-1)
    # Unwritten memory (the rows of sampled requests) may hold anything.
    target_known = in_row & (target >= 0) & (target < vocab_size)
    target = tl.where(target_known, target, -1)
    num_draft = tl.min(tl.where((draft >= 0) & (draft < vocab_size) & in_row, WIDTH, position), axis=0)
    in_draft = position < num_draft
    is_match = in_draft & (draft == target)
    allowed = in_draft
    if HAS_SCOPE:
        allowed &= tl.load(in_scope_ptr + row * in_scope_stride + position, mask=in_row, other=0) != 0
    if MAXIMA:
        block = tl.arange(0, NUM_BLOCKS)
        cell = (row * max_num_draft + position)[:, None] * num_blocks + block[None, :]
        has_nan = tl.load(nan_ptr + cell, mask=in_row[:, None] & (block < num_blocks)[None, :], other=0)
        allowed &= tl.max(has_nan.to(tl.int32), axis=1) == 0
    regret = _regret(logits_ptr + flat * logits_stride, draft, target, in_draft & target_known, allowed)
    words_row = words_ptr + tl.load(set_ptr + row) * num_words
    protected = _holds(words_row, num_words, draft, in_draft) | _holds(
        words_row, num_words, target, target_known
    )
    protected = protected.to(tl.int32)

    # Token by token: the budget's sum must round as the reference's does.
    spent = tl.full((), 0.0, tl.float64)
    exceptions = tl.full((), 0, tl.int32)
    reused = tl.full((), 0, tl.int32)
    strict = tl.full((), 0, tl.int32)
    reason = tl.full((), _END, tl.int32)
    kept = tl.zeros([WIDTH], dtype=tl.int32)
    for i in range(num_draft):
        here = position == i
        match_here = tl.max((here & is_match).to(tl.int32), axis=0) > 0
        protected_here = tl.max(tl.where(here, protected, 0), axis=0) > 0
        regret_here = tl.sum(tl.where(here, regret, 0.0), axis=0)
        if REALIZED:
            q = tl.min(tl.where((position > i) & (is_match == 0), position, WIDTH), axis=0) - i
        else:
            q = num_draft - i
        refusal = _refusal(regret_here, q, protected_here, exceptions, spent, gate, block_cap, remaining)
        going = reason == _END
        keep_match = going & match_here
        keep_exception = going & (match_here == 0) & (refusal == _END)
        reason = tl.where(going & (match_here == 0), refusal, reason)
        strict += (keep_match & (exceptions == 0)).to(tl.int32)
        reused += (keep_match & (exceptions > 0)).to(tl.int32)
        exceptions += keep_exception.to(tl.int32)
        spent += tl.where(keep_exception, regret_here, 0.0)
        kept |= (here & keep_exception).to(tl.int32)

    out = table_ptr + row * table_stride
    tl.store(out + _NUM_DRAFT_TO, num_draft.to(tl.float64))
    tl.store(out + _ACCEPTED_TO, (strict + exceptions + reused).to(tl.float64))
    tl.store(out + _STRICT_TO, strict.to(tl.float64))
    tl.store(out + _EXCEPTIONS_TO, exceptions.to(tl.float64))
    tl.store(out + _REUSED_TO, reused.to(tl.float64))
    tl.store(out + _STOP_TO, reason.to(tl.float64))
    tl.store(out + _CHARGED_TO, spent)
    tl.store(out + _SPENT_TO, 0.0)
    tl.store(out + _SHADOW_TO, shadow)
    tl.store(out + _THINKING_TO, -1.0)
    tl.store(out + _GUARD_TO, 0.0)
    in_table = position < max_num_draft
    tl.store(out + _SCALARS + position, tl.where(kept != 0, regret, -1.0), mask=in_table)
    tl.store(
        out + _SCALARS + max_num_draft + position,
        tl.where(kept != 0, target, -1).to(tl.float64),
        mask=in_table,
    )
    tl.store(place, draft, mask=(kept != 0) & (shadow == 0.0))


@jit
def _nan_kernel(  # type: ignore[no-untyped-def]
    nan_ptr,
    max_num_draft,
    argmax_ptr,
    argmax_stride,
    max_ptr,
    max_stride,
    num_blocks,
    logits_ptr,
    logits_stride,
    vocab_size,
    draft_ids_ptr,
    cu_ptr,
    slots_ptr,
    largest_regret,
    BLOCK: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """Write, per draft and block of the vocabulary, whether there is NaN behind a near miss."""
    request = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1)
    here = tl.program_id(2)
    start = tl.load(cu_ptr + request).to(tl.int64)
    row = start + position
    if row < tl.load(cu_ptr + request + 1) - 1:
        found = tl.full((), 0, tl.int32)
        block = tl.arange(0, NUM_BLOCKS)
        value = tl.load(max_ptr + row * max_stride + block, mask=block < num_blocks, other=float("-inf"))
        best = tl.argmax(tl.where(value == value, value, float("-inf")), axis=0).to(tl.int64)
        target = tl.load(argmax_ptr + row * argmax_stride + best)
        draft = tl.load(draft_ids_ptr + row + 1).to(tl.int64)
        # Slot 0 makes no exception, and its rows' argmax may be unwritten.
        readable = (draft >= 0) & (draft < vocab_size) & (draft != target)
        readable = readable & (target >= 0) & (target < vocab_size) & (tl.load(slots_ptr + request) != 0)
        logits_row = logits_ptr + row * logits_stride
        high = tl.load(logits_row + target, mask=readable, other=0.0).to(tl.float32)
        gap = high - tl.load(logits_row + draft, mask=readable, other=1.0).to(tl.float32)
        if (gap >= 0) & (gap <= largest_regret):
            token = here * BLOCK + tl.arange(0, BLOCK)
            # The interpreter holds bfloat16 as bits, which equal themselves.
            logits = tl.load(logits_row + token, mask=token < vocab_size, other=0.0).to(tl.float32)
            found = tl.max((logits != logits).to(tl.int32), axis=0)
        tl.store(nan_ptr + (request * max_num_draft + position) * num_blocks + here, found.to(tl.int8))


def verify_drafts_triton(blocks: DraftBlocks, rows: RowLimits, outcome: Outcome) -> None:
    """Decide one step in one launch; :func:`.verify.verify_drafts_reference`'s contract, with the same bits.

    Raises:
        ValueError: ``rows.pricing`` is unknown.
    """
    arguments = dict(
        argmax_ptr=blocks.argmax,
        argmax_stride=blocks.argmax.stride(0),
        max_ptr=None,
        max_stride=0,
        num_blocks=0,
        nan_ptr=None,
        draft_ids_ptr=blocks.draft_ids.contiguous(),
        cu_ptr=blocks.cu_num_draft.contiguous(),
        MAXIMA=False,
        NUM_BLOCKS=1,
    )
    _decide(arguments, _dense(blocks.logits), rows, outcome)


def verify_maxima_triton(
    blocks: MaximaBlocks, rows: RowLimits, outcome: Outcome, largest_regret: float
) -> None:
    """Decide one step in two launches; :func:`.blocks.verify_maxima_reference`'s contract and bits.

    Raises:
        ValueError: ``rows.pricing`` is unknown.
    """
    num_rows, num_blocks = outcome.table.shape[0], blocks.block_max.shape[1]
    logits = _dense(blocks.logits)
    nan = torch.empty(num_rows, outcome.width, num_blocks, dtype=torch.int8, device=logits.device)
    arguments = dict(
        argmax_ptr=blocks.block_argmax,
        argmax_stride=blocks.block_argmax.stride(0),
        max_ptr=blocks.block_max,
        max_stride=blocks.block_max.stride(0),
        num_blocks=num_blocks,
        nan_ptr=nan,
        draft_ids_ptr=blocks.draft_sampled,
        cu_ptr=blocks.cu_num_logits,
        NUM_BLOCKS=triton.next_power_of_2(num_blocks),
    )
    # As many blocks as vLLM looked at, which are fewer where the draft model's vocabulary is the smaller one.
    grid = (num_rows, outcome.width, num_blocks)
    if num_rows and outcome.width:
        _nan_kernel[grid](
            **arguments,
            max_num_draft=outcome.width,
            logits_ptr=logits,
            logits_stride=logits.stride(0),
            vocab_size=logits.shape[1],
            slots_ptr=rows.slots,
            largest_regret=largest_regret,
            BLOCK=VOCAB_BLOCK,
        )
    _decide({**arguments, "MAXIMA": True}, logits, rows, outcome)


def _decide(arguments: dict[str, object], logits: torch.Tensor, rows: RowLimits, outcome: Outcome) -> None:
    check_pricing(rows.pricing)
    num_rows = outcome.table.shape[0]
    if not num_rows:
        return
    # Contiguous on every path of ours, where this costs nothing.
    in_scope = None if rows.in_scope is None else rows.in_scope.contiguous()
    _decide_kernel[(num_rows,)](
        **arguments,
        table_ptr=outcome.table,
        table_stride=outcome.table.stride(0),
        max_num_draft=outcome.width,
        logits_ptr=logits,
        logits_stride=logits.stride(0),
        vocab_size=logits.shape[1],
        accounts_ptr=rows.accounts,
        accounts_stride=rows.accounts.stride(0),
        slots_ptr=rows.slots.contiguous(),
        words_ptr=rows.protected.words.contiguous(),
        num_words=rows.protected.words.shape[1],
        set_ptr=rows.protected.row.contiguous(),
        closed_ptr=None if rows.closed is None else rows.closed.contiguous().view(torch.uint8),
        in_scope_ptr=None if in_scope is None else in_scope.view(torch.uint8),
        in_scope_stride=0 if in_scope is None else in_scope.stride(0),
        HAS_CLOSED=rows.closed is not None,
        HAS_SCOPE=in_scope is not None,
        REALIZED=rows.pricing == "realized",
        WIDTH=triton.next_power_of_2(max(outcome.width, 1)),
        num_warps=1 if outcome.width <= 32 else 4,
    )


def _dense(logits: torch.Tensor) -> torch.Tensor:
    """A row of logits is contiguous on every path of vLLM; anything else would be copied here."""
    return logits if logits.stride(1) == 1 else logits.contiguous()
