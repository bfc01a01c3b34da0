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

from vllm_asd.kernels.charge import BUDGET, GRANTED, REFILL, REMAINING
from vllm_asd.kernels.verify import DraftBlocks, Outcome, RowLimits
from vllm_asd.policy import StopReason

# numba reads plain integers as constants, but not members of an IntEnum.
_END, _GATE, _CAP = int(StopReason.END), int(StopReason.GATE), int(StopReason.CAP)
_BUDGET, _PROTECTED, _INVALID = int(StopReason.BUDGET), int(StopReason.PROTECTED), int(StopReason.INVALID)

# Layout "A" takes any strides, so that no layout that turns up in a request makes numba compile anew.
_INT64, _INT64_2D = numba.types.Array(numba.int64, 1, "A"), numba.types.Array(numba.int64, 2, "A")
_FLOAT64, _FLOAT64_2D = numba.types.Array(numba.float64, 1, "A"), numba.types.Array(numba.float64, 2, "A")
_BOOL, _BOOL_2D = numba.types.Array(numba.bool_, 1, "A"), numba.types.Array(numba.bool_, 2, "A")
_INT32, _INT8 = numba.types.Array(numba.int32, 1, "A"), numba.types.Array(numba.int8, 1, "A")
_FLOAT32_2D = numba.types.Array(numba.float32, 2, "A")
_DECIDE_SIGNATURE = numba.void(
    *(_FLOAT32_2D, numba.bool_, numba.int64, _INT64, _INT64, _INT64),
    *(_FLOAT64, _FLOAT64, _INT32, _BOOL, _INT64_2D, _BOOL_2D, numba.bool_),
    *(_INT64_2D, _INT8, _FLOAT64, _FLOAT64_2D, _INT64_2D),
)
_CHARGE_SIGNATURE = numba.void(_FLOAT64_2D, _INT64, _FLOAT64, _INT64, _FLOAT64)
_EVERYWHERE = np.zeros((0, 0), dtype=np.bool_)
_NO_TOKENS = np.zeros(0, dtype=np.int64)


def verify_drafts_cpu(blocks: DraftBlocks, rows: RowLimits) -> Outcome:
    """Decide one step on the CPU; :func:`verify_drafts_reference`'s contract, with the same bits.

    Raises:
        ValueError: ``rows.pricing`` is unknown, or ``blocks.cu_num_draft`` does not fit the drafts.
    """
    if rows.pricing not in ("remaining", "realized"):
        raise ValueError(f"pricing must be 'remaining' or 'realized', got {rows.pricing!r}")
    num_rows, width = blocks.cu_num_draft.shape[0], blocks.width
    logits = blocks.logits
    vocab_size = logits.shape[1]
    has_pairs = logits.dtype != torch.float32
    if has_pairs:
        # Two columns, the argmax's and the draft's, in place of V: numpy has no bfloat16.
        pairs = torch.stack((blocks.argmax, blocks.draft_ids.to(torch.int64)), dim=1)
        logits = logits.gather(1, pairs.clamp_(0, vocab_size - 1)).to(torch.float32)
    counts = np.empty((5, num_rows), dtype=np.int64)
    stop = np.empty(num_rows, dtype=np.int8)
    charged = np.empty(num_rows, dtype=np.float64)
    exception_regret = np.empty((num_rows, width), dtype=np.float64)
    target_ids = np.empty((num_rows, width), dtype=np.int64)
    _compiled_decide()(
        logits.numpy(),
        has_pairs,
        vocab_size,
        blocks.argmax.numpy(),
        blocks.draft_ids.numpy().astype(np.int64, copy=False),
        blocks.cu_num_draft.numpy().astype(np.int64, copy=False),
        rows.remaining.numpy(),
        rows.gate.numpy(),
        rows.block_cap.numpy(),
        rows.shadow.numpy(),
        rows.protected_ids.numpy(),
        _EVERYWHERE if rows.in_scope is None else rows.in_scope.numpy(),
        rows.pricing == "realized",
        counts,
        stop,
        charged,
        exception_regret,
        target_ids,
    )
    num_draft, accepted, strict_accepted, exceptions, reused = torch.from_numpy(counts).unbind(0)
    return Outcome(
        num_draft=num_draft,
        accepted=accepted,
        strict_accepted=strict_accepted,
        exceptions=exceptions,
        reused=reused,
        stop=torch.from_numpy(stop),
        charged=torch.from_numpy(charged),
        exception_regret=torch.from_numpy(exception_regret),
        target_ids=torch.from_numpy(target_ids),
    )


def charge_accounts_cpu(
    accounts: Tensor, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None
) -> Tensor:
    """Charge one step on the CPU; :func:`charge_accounts_reference`'s contract, with the same bits."""
    spent = np.empty(slots.shape[0], dtype=np.float64)
    _compiled_charge()(
        accounts.numpy(),
        slots.numpy(),
        charged.numpy(),
        _NO_TOKENS if emitted_tokens is None else emitted_tokens.numpy().astype(np.int64, copy=False),
        spent,
    )
    return torch.from_numpy(spent)


def warm_up() -> None:
    """Compile now, so that no request waits for it."""
    _compiled_decide()
    _compiled_charge()


@functools.cache
def _compiled_decide() -> Callable[..., None]:
    compiled: Callable[..., None] = numba.njit(_DECIDE_SIGNATURE)(_decide)
    return compiled


@functools.cache
def _compiled_charge() -> Callable[..., None]:
    compiled: Callable[..., None] = numba.njit(_CHARGE_SIGNATURE)(_charge)
    return compiled


def _charge(accounts: Any, slots: Any, charged: Any, emitted_tokens: Any, spent: Any) -> None:
    """Charge row by row; ``emitted_tokens`` without elements credits nothing."""
    for row in range(slots.shape[0]):
        slot = slots[row]
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
    remaining: Any,
    gate: Any,
    block_cap: Any,
    shadow: Any,
    protected_ids: Any,
    in_scope: Any,
    realized: bool,
    counts: Any,
    stop: Any,
    charged: Any,
    exception_regret: Any,
    target_ids: Any,
) -> None:
    """Walk each row token by token, as DESIGN section 2 words the rule.

    The arrays are those of DraftBlocks, RowLimits and Outcome (``counts`` its first five). With ``has_pairs``
    logits is [N, 2], the values at the argmax and at the draft token. ``in_scope`` without rows: everywhere.
    """
    num_rows, width = target_ids.shape
    for row in range(num_rows):
        start = cu_num_draft[row - 1] if row > 0 else 0
        length = cu_num_draft[row] - start
        # Nobody else checks bounds here.
        if start < 0 or length < 0 or length > width or start + length > draft_ids.shape[0]:
            raise ValueError("cu_num_draft does not fit the drafts")
        for i in range(width):
            target_ids[row, i] = argmax[start + i] if i < length else -1
            exception_regret[row, i] = -1.0
        num_draft = 0
        while num_draft < length and 0 <= draft_ids[start + num_draft] < vocab_size:
            num_draft += 1
        strict_accepted, exceptions, reused, spent, reason = 0, 0, 0, 0.0, _END
        for i in range(num_draft):
            draft, target = draft_ids[start + i], argmax[start + i]
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
            reason = _refusal(regret, q, gate[row], block_cap[row], remaining[row], exceptions, spent)
            for j in range(protected_ids.shape[1]):
                token = protected_ids[row, j]
                # The padding, -1, is no token, whatever the argmax of a row of NaN is. It may be long.
                if token < 0:
                    break
                if token in (draft, target):
                    reason = _PROTECTED
            if reason != _END:
                break
            exceptions += 1
            spent += regret
            exception_regret[row, i] = regret
            if not shadow[row]:
                argmax[start + i] = draft
        counts[0, row] = num_draft
        counts[1, row] = strict_accepted + exceptions + reused
        counts[2, row] = strict_accepted
        counts[3, row] = exceptions
        counts[4, row] = reused
        stop[row] = reason
        charged[row] = spent


@numba.njit
def _refusal(
    regret: float, q: int, gate: float, block_cap: int, remaining: float, exceptions: int, spent: float
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
