"""The decision as one compiled loop for the CPU: about sixty small torch ops cost more than the rule itself.

Needs numba, which vLLM depends on. Compiled once per process by :func:`warm_up` and not cached on disk: it
takes a second or two of a start of many, and no stale or unwritable cache can come between.
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

# Layout "A" takes any strides, so that no layout that turns up in a request makes numba compile anew.
_INT64, _INT64_2D = numba.types.Array(numba.int64, 1, "A"), numba.types.Array(numba.int64, 2, "A")
_FLOAT64, _FLOAT64_2D = numba.types.Array(numba.float64, 1, "A"), numba.types.Array(numba.float64, 2, "A")
_BOOL, _BOOL_2D = numba.types.Array(numba.bool_, 1, "A"), numba.types.Array(numba.bool_, 2, "A")
_INT32, _INT32_2D = numba.types.Array(numba.int32, 1, "A"), numba.types.Array(numba.int32, 2, "A")
_FLOAT32_2D = numba.types.Array(numba.float32, 2, "A")
# vLLM keeps drafts in either width.
_DECIDE_SIGNATURES = [
    numba.void(
        *(_FLOAT32_2D, numba.bool_, numba.int64, _INT64, ids, ids),
        *(_FLOAT64_2D, _INT64, _INT32_2D, _INT64, _BOOL, _BOOL_2D, numba.bool_),
        *(_FLOAT64_2D, numba.int64),
    )
    for ids in (_INT32, _INT64)
]
_CHARGE_SIGNATURE = numba.void(_FLOAT64_2D, _INT64, _FLOAT64, _INT64, _FLOAT64, _FLOAT64_2D)
_EVERYWHERE = np.zeros((0, 0), dtype=np.bool_)
_NOWHERE = np.zeros(0, dtype=np.bool_)
_NO_TOKENS = np.zeros(0, dtype=np.int64)


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
    if draft_ids.dtype != cu_num_draft.dtype:
        draft_ids, cu_num_draft = draft_ids.to(torch.int64), cu_num_draft.to(torch.int64)
    _compiled_decide()(
        logits.numpy(),
        has_pairs,
        vocab_size,
        blocks.argmax.numpy(),
        draft_ids.numpy(),
        cu_num_draft.numpy(),
        rows.accounts.numpy(),
        rows.slots.numpy(),
        rows.protected.words.numpy(),
        rows.protected.row.numpy(),
        _NOWHERE if rows.closed is None else rows.closed.numpy(),
        _EVERYWHERE if rows.in_scope is None else rows.in_scope.numpy(),
        rows.pricing == "realized",
        outcome.table.numpy(),
        outcome.width,
    )


def charge_accounts_cpu(
    accounts: Tensor, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None, spent: Tensor
) -> Tensor:
    """Charge one step on the CPU; :func:`charge_accounts_reference`'s contract, with the same bits."""
    before = np.empty((slots.shape[0], 2), dtype=np.float64)
    _compiled_charge()(
        accounts.numpy(),
        slots.numpy(),
        charged.numpy(),
        _NO_TOKENS if emitted_tokens is None else emitted_tokens.numpy().astype(np.int64, copy=False),
        spent.numpy(),
        before,
    )
    return torch.from_numpy(before)


def warm_up() -> None:
    """Compile now, so that no request waits for it."""
    _compiled_decide()
    _compiled_charge()


@functools.cache
def _compiled_decide() -> Callable[..., None]:
    compiled: Callable[..., None] = numba.njit(_DECIDE_SIGNATURES)(_decide)
    return compiled


@functools.cache
def _compiled_charge() -> Callable[..., None]:
    compiled: Callable[..., None] = numba.njit(_CHARGE_SIGNATURE)(_charge)
    return compiled


def _charge(accounts: Any, slots: Any, charged: Any, emitted_tokens: Any, spent: Any, before: Any) -> None:
    """Charge row by row; ``emitted_tokens`` without elements credits nothing."""
    for row in range(slots.shape[0]):
        slot = slots[row]
        before[row, 0] = accounts[slot, REMAINING]
        before[row, 1] = accounts[slot, GRANTED]
        if slot == 0:
            spent[row] = 0.0
            continue
        budget = accounts[slot, BUDGET]
        after = max(accounts[slot, REMAINING] - charged[row], 0.0)
        if emitted_tokens.shape[0] > 0:
            refilled = min(budget, after + accounts[slot, REFILL] * emitted_tokens[row])
            accounts[slot, GRANTED] += refilled - after
            after = refilled
        accounts[slot, REMAINING] = after
        spent[row] = budget + accounts[slot, GRANTED] - after


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
