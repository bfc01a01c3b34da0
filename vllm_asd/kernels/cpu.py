"""The decision as one compiled loop for the CPU: about sixty small torch ops cost more than the rule itself.

Needs numba, which vLLM depends on. Compiled once per process by :func:`warm_up` and not cached on disk: it
takes a second or two of a start of many, and no stale or unwritable cache can come between.

The loops are called with addresses and sizes, all plain integers: to have numba take a dozen arrays apart
costs more than the decision. What the integers point to is checked here, before the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from vllm_asd.kernels.accounts import BLOCK_CAP, BUDGET, GATE, GRANTED, REFILL, REMAINING, SHADOW
from vllm_asd.kernels.outcome import NUM_SCALARS, Column, Outcome
from vllm_asd.kernels.verify import DraftBlocks, RowLimits, check_pricing
from vllm_asd.policy import StopReason

# numba reads plain integers as constants, but not members of an IntEnum.
_END, _GATE, _CAP = int(StopReason.END), int(StopReason.GATE), int(StopReason.CAP)
_BUDGET, _PROTECTED, _INVALID = int(StopReason.BUDGET), int(StopReason.PROTECTED), int(StopReason.INVALID)
_NUM_DRAFT_TO, _ACCEPTED_TO = int(Column.NUM_DRAFT), int(Column.ACCEPTED)
_STRICT_TO, _EXCEPTIONS_TO = int(Column.STRICT_ACCEPTED), int(Column.EXCEPTIONS)
_REUSED_TO, _STOP_TO, _CHARGED_TO = int(Column.REUSED), int(Column.STOP), int(Column.CHARGED)
_SPENT_TO, _SHADOW_TO = int(Column.SPENT), int(Column.SHADOW)
_THINKING_TO, _GUARD_TO = int(Column.THINKING), int(Column.GUARD)

# One signature, so that nothing that turns up in a request makes numba compile anew.
_DECIDE_SIGNATURE = numba.void(*[numba.int64] * 25)
_CHARGE_SIGNATURE = numba.void(*[numba.int64] * 11)


def verify_drafts_cpu(blocks: DraftBlocks, rows: RowLimits, outcome: Outcome) -> None:
    """Decide one step on the CPU; :func:`verify_drafts_reference`'s contract, with the same bits.

    Raises:
        ValueError: ``rows.pricing`` is unknown, or ``blocks.cu_num_draft`` does not fit the drafts.
    """
    check_pricing(rows.pricing)
    logits, draft_ids, cu_num_draft = blocks.logits, blocks.draft_ids, blocks.cu_num_draft
    vocab_size = logits.shape[1]
    has_pairs = logits.dtype != torch.float32
    if has_pairs:
        # Two columns, the argmax's and the draft's, in place of V: numpy has no bfloat16.
        pairs = torch.stack((blocks.argmax, draft_ids.to(torch.int64)), dim=1)
        logits = logits.gather(1, pairs.clamp_(0, vocab_size - 1)).to(torch.float32)
    if draft_ids.dtype != cu_num_draft.dtype or draft_ids.dtype not in (torch.int32, torch.int64):
        draft_ids, cu_num_draft = draft_ids.to(torch.int64), cu_num_draft.to(torch.int64)
    # Every tensor keeps its name until the call is over: an address holds nothing.
    logits, argmax = _packed(logits, torch.float32), _packed(blocks.argmax, torch.int64)
    draft_ids, cu_num_draft = _packed(draft_ids, draft_ids.dtype), _packed(cu_num_draft, draft_ids.dtype)
    accounts, slots = _packed(rows.accounts, torch.float64), _packed(rows.slots, torch.int64)
    words = _packed(rows.protected.words, torch.int32)
    set_index = _packed(rows.protected.row, torch.int64)
    closed = None if rows.closed is None else _packed(rows.closed, torch.bool)
    in_scope = None if rows.in_scope is None else _packed(rows.in_scope, torch.bool)
    table = _packed(outcome.table, torch.float64)
    _compiled_decide()(
        *(logits.data_ptr(), logits.shape[1], has_pairs, vocab_size, argmax.data_ptr()),
        *(draft_ids.data_ptr(), draft_ids.dtype is torch.int64, draft_ids.shape[0], cu_num_draft.data_ptr()),
        *(accounts.data_ptr(), *accounts.shape, slots.data_ptr(), slots.shape[0]),
        *(words.data_ptr(), *words.shape, set_index.data_ptr()),
        0 if closed is None else closed.data_ptr(),
        *((0, 0) if in_scope is None else (in_scope.data_ptr(), in_scope.shape[1])),
        *(rows.pricing == "realized", table.data_ptr(), table.shape[1], outcome.width),
    )
    _write_back(argmax, blocks.argmax)
    _write_back(table, outcome.table)


def charge_accounts_cpu(
    accounts: Tensor, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None, spent: Tensor
) -> Tensor:
    """Charge one step on the CPU; :func:`charge_accounts_reference`'s contract, with the same bits."""
    packed, slots = _packed(accounts, torch.float64), _packed(slots, torch.int64)
    emitted = None if emitted_tokens is None else _packed(emitted_tokens.to(torch.int64), torch.int64)
    if charged.dtype is not torch.float64 or spent.dtype is not torch.float64:
        raise TypeError(f"expected float64, got {charged.dtype} and {spent.dtype}")
    before = torch.from_numpy(np.empty((slots.shape[0], 2)))
    _compiled_charge()(
        *(packed.data_ptr(), *packed.shape, slots.data_ptr(), slots.shape[0]),
        *(charged.data_ptr(), charged.stride(0), 0 if emitted is None else emitted.data_ptr()),
        *(spent.data_ptr(), spent.stride(0), before.data_ptr()),
    )
    _write_back(packed, accounts)
    return before


def _packed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor itself, or a copy when there are gaps in it: the loops are not told strides.

    Raises:
        TypeError: It is of another type, or not on the CPU.
    """
    if tensor.dtype is not dtype or not tensor.is_cpu:
        raise TypeError(f"expected {dtype} on the CPU, got {tensor.dtype} on {tensor.device}")
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _write_back(packed: Tensor, tensor: Tensor) -> None:
    """Copy what a loop wrote to where it belongs, unless it was written there."""
    if packed is not tensor:
        # PyTorch lets nobody but numpy write to a tensor of inference mode outside of it.
        tensor.numpy()[...] = packed.numpy()


def warm_up() -> None:
    """Compile now, so that no request waits for it."""
    _compiled_decide()
    _compiled_charge()


@functools.cache
def _compiled_decide() -> Callable[..., None]:
    compiled: Callable[..., None] = numba.njit(_DECIDE_SIGNATURE)(_decide_at)
    return compiled


@functools.cache
def _compiled_charge() -> Callable[..., None]:
    compiled: Callable[..., None] = numba.njit(_CHARGE_SIGNATURE)(_charge_at)
    return compiled


@numba.extending.intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """Make a pointer of an integer; numba has no such call."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return numba.types.voidptr(address), generate


def _charge_at(
    accounts: int,
    num_accounts: int,
    num_columns: int,
    slots: int,
    num_rows: int,
    charged: int,
    charged_stride: int,
    emitted_tokens: int,
    spent: int,
    spent_stride: int,
    before: int,
) -> None:
    """Call :func:`_charge` with the arrays at these addresses; ``emitted_tokens`` may be 0."""
    _charge(
        numba.carray(_pointer(accounts), (num_accounts, num_columns), np.float64),
        numba.carray(_pointer(slots), num_rows, np.int64),
        numba.carray(_pointer(charged), (num_rows, charged_stride), np.float64),
        numba.carray(_pointer(emitted_tokens), num_rows if emitted_tokens != 0 else 0, np.int64),
        numba.carray(_pointer(spent), (num_rows, spent_stride), np.float64),
        numba.carray(_pointer(before), (num_rows, 2), np.float64),
    )


@numba.njit
def _charge(accounts: Any, slots: Any, charged: Any, emitted_tokens: Any, spent: Any, before: Any) -> None:
    """Charge row by row; ``emitted_tokens`` without elements credits nothing.

    ``charged`` and ``spent`` are columns of a table: [R, stride], of which the first is theirs.
    """
    for row in range(slots.shape[0]):
        slot = slots[row]
        before[row, 0] = accounts[slot, REMAINING]
        before[row, 1] = accounts[slot, GRANTED]
        if slot == 0:
            spent[row, 0] = 0.0
            continue
        budget = accounts[slot, BUDGET]
        after = max(accounts[slot, REMAINING] - charged[row, 0], 0.0)
        if emitted_tokens.shape[0] > 0:
            refilled = min(budget, after + accounts[slot, REFILL] * emitted_tokens[row])
            accounts[slot, GRANTED] += refilled - after
            after = refilled
        accounts[slot, REMAINING] = after
        spent[row, 0] = budget + accounts[slot, GRANTED] - after


def _decide_at(
    logits: int,
    num_columns: int,
    has_pairs: int,
    vocab_size: int,
    argmax: int,
    draft_ids: int,
    wide_ids: int,
    num_drafts: int,
    cu_num_draft: int,
    accounts: int,
    num_accounts: int,
    num_account_columns: int,
    slots: int,
    num_rows: int,
    words: int,
    num_sets: int,
    num_words: int,
    set_index: int,
    closed: int,
    in_scope: int,
    scope_width: int,
    realized: int,
    table: int,
    num_table_columns: int,
    width: int,
) -> None:
    """Call :func:`_decide` with the arrays at these addresses; ``closed`` and ``in_scope`` may be 0."""
    step = (
        numba.carray(_pointer(logits), (num_drafts, num_columns), np.float32),
        has_pairs != 0,
        vocab_size,
        numba.carray(_pointer(argmax), num_drafts, np.int64),
    )
    rows = (
        numba.carray(_pointer(accounts), (num_accounts, num_account_columns), np.float64),
        numba.carray(_pointer(slots), num_rows, np.int64),
        numba.carray(_pointer(words), (num_sets, num_words), np.int32),
        numba.carray(_pointer(set_index), num_rows, np.int64),
        numba.carray(_pointer(closed), num_rows if closed != 0 else 0, np.bool_),
        numba.carray(_pointer(in_scope), (num_rows if in_scope != 0 else 0, scope_width), np.bool_),
        realized != 0,
        numba.carray(_pointer(table), (num_rows, num_table_columns), np.float64),
        width,
    )
    # vLLM keeps drafts in either width.
    if wide_ids != 0:
        ids = numba.carray(_pointer(draft_ids), num_drafts, np.int64)
        _decide(*step, ids, numba.carray(_pointer(cu_num_draft), num_rows, np.int64), *rows)
    else:
        short_ids = numba.carray(_pointer(draft_ids), num_drafts, np.int32)
        _decide(*step, short_ids, numba.carray(_pointer(cu_num_draft), num_rows, np.int32), *rows)


@numba.njit
def _decide(
    logits: Any,
    has_pairs: bool,
    vocab_size: int,
    argmax: Any,
    draft_ids: Any,
    cu_num_draft: Any,
    accounts: Any,
    slots: Any,
    words: Any,
    set_index: Any,
    closed: Any,
    in_scope: Any,
    realized: bool,
    table: Any,
    width: int,
) -> None:
    """Walk each row token by token, as DESIGN section 2 words the rule.

    The arrays are those of DraftBlocks, RowLimits and Outcome. With ``has_pairs`` logits is [N, 2], the
    values at the argmax and at the draft token. ``in_scope`` without rows: everywhere; ``closed``: nowhere.
    """
    for row in range(slots.shape[0]):
        start = cu_num_draft[row - 1] if row > 0 else 0
        length = cu_num_draft[row] - start
        # Nobody else checks bounds here.
        if start < 0 or length < 0 or length > width or start + length > draft_ids.shape[0]:
            raise ValueError("cu_num_draft does not fit the drafts")
        account = accounts[slots[row]]
        remaining, block_cap, shadow = account[REMAINING], account[BLOCK_CAP], account[SHADOW]
        gate = 0.0 if closed.shape[0] > 0 and closed[row] else account[GATE]
        bitmap = words[set_index[row]]
        for i in range(NUM_SCALARS, NUM_SCALARS + 2 * width):
            table[row, i] = -1.0
        num_draft = 0
        while num_draft < length and 0 <= draft_ids[start + num_draft] < vocab_size:
            num_draft += 1
        strict_accepted, exceptions, reused, spent, reason = 0, 0, 0, 0.0, _END
        for i in range(num_draft):
            draft, target = np.int64(draft_ids[start + i]), argmax[start + i]
            if draft == target:
                strict_accepted += exceptions == 0
                reused += exceptions > 0
                continue
            regret = np.inf
            if 0 <= target < vocab_size and (in_scope.shape[0] == 0 or in_scope[row, i]):
                # In float32, as the reference subtracts.
                high = logits[start + i, 0 if has_pairs else target]
                regret = np.float64(high - logits[start + i, 1 if has_pairs else draft])
            end = start + num_draft
            if realized:
                end = start + i + 1
                while end < start + num_draft and draft_ids[end] == argmax[end]:
                    end += 1
            q = end - (start + i)
            reason = _refusal(regret, q, gate, block_cap, remaining, exceptions, spent)
            if _holds(bitmap, draft) or _holds(bitmap, target):
                reason = _PROTECTED
            if reason != _END:
                break
            exceptions += 1
            spent += regret
            table[row, NUM_SCALARS + i] = regret
            table[row, NUM_SCALARS + width + i] = target
            if shadow == 0:
                argmax[start + i] = draft
        table[row, _NUM_DRAFT_TO] = num_draft
        table[row, _ACCEPTED_TO] = strict_accepted + exceptions + reused
        table[row, _STRICT_TO] = strict_accepted
        table[row, _EXCEPTIONS_TO] = exceptions
        table[row, _REUSED_TO] = reused
        table[row, _STOP_TO] = reason
        table[row, _CHARGED_TO] = spent
        table[row, _SPENT_TO] = 0.0
        table[row, _SHADOW_TO] = shadow
        table[row, _THINKING_TO] = -1.0
        table[row, _GUARD_TO] = 0.0


@numba.njit
def _holds(bitmap: Any, token: int) -> bool:
    """Whether a set holds a token; see :meth:`vllm_asd.kernels.verify.ProtectedIds.hold`."""
    word = token >> 5
    return token >= 0 and word < bitmap.shape[0] and (bitmap[word] >> (token & 31)) & 1 != 0


@numba.njit
def _refusal(
    regret: float, q: int, gate: float, block_cap: float, remaining: float, exceptions: int, spent: float
) -> int:
    """Why a mismatch cannot be kept, in the order of :func:`vllm_asd.policy.stop_reason`; _END: it can."""
    if not 0 <= regret < np.inf:
        return _INVALID
    if not (gate > 0 and block_cap > 0 and remaining > 0):
        if not gate > 0:
            return _GATE
        return _CAP if not block_cap > 0 else _BUDGET
    if regret / q > gate:
        return _GATE
    if exceptions >= block_cap:
        return _CAP
    return _BUDGET if spent + regret > remaining else _END
