"""The decision as one Triton launch, one program per request. Imports no vLLM.

The logits are read at two places per draft; a pass over them is only needed for the argmax, which vLLM brings
(V1), or brings in blocks (V2, :mod:`.triton_blocks`).
"""

import torch
import triton
import triton.language as tl

from vllm_asd.kernels.verify import DraftBlocks, Outcome, RowLimits

# Values of StopReason: Triton reads module constants only as constexpr.
_END, _GATE, _CAP = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_BUDGET, _PROTECTED, _INVALID = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)


@triton.jit
def _regret(logits_row, draft, target, readable, allowed):  # type: ignore[no-untyped-def]
    """Nats as float64, +inf where not acceptable; see :func:`.reference.score_drafts`."""
    # Masked, not clamped: -1 as an index would read another row's memory.
    high = tl.load(logits_row + target, mask=readable, other=0.0).to(tl.float32)
    low = tl.load(logits_row + draft, mask=readable, other=0.0).to(tl.float32)
    gap = high - low
    return tl.where(readable & allowed & (gap >= 0), gap, float("inf")).to(tl.float64)


@triton.jit
def _holds(ids_ptr, num_ids, draft, target):  # type: ignore[no-untyped-def]
    """1 where a set of ids, padded with -1, holds the draft or the target."""
    found = tl.zeros_like(draft).to(tl.int32)
    for i in range(num_ids):
        token = tl.load(ids_ptr + i)
        found |= ((token >= 0) & ((draft == token) | (target == token))).to(tl.int32)
    return found


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


# Neither a set of protected ids of another size nor a chunk that begins elsewhere in memory may make Triton
# compile anew in the middle of serving.
@triton.jit(
    do_not_specialize=["num_protected"],
    do_not_specialize_on_alignment=[
        "argmax_ptr",
        "draft_ids_ptr",
        "cu_num_draft_ptr",
        "gate_ptr",
        "block_cap_ptr",
        "shadow_ptr",
        "protected_ids_ptr",
    ],
)
def _verify_kernel(  # type: ignore[no-untyped-def]
    counts_ptr,
    stop_ptr,
    charged_ptr,
    exception_regret_ptr,
    target_ids_ptr,
    argmax_ptr,
    argmax_stride,
    logits_ptr,
    logits_stride,
    draft_ids_ptr,
    cu_num_draft_ptr,
    remaining_ptr,
    gate_ptr,
    block_cap_ptr,
    shadow_ptr,
    protected_ids_ptr,
    num_protected,
    in_scope_ptr,
    vocab_size,
    width,
    HAS_SCOPE: tl.constexpr,
    REALIZED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0)
    start = tl.load(cu_num_draft_ptr + row - 1, mask=row > 0, other=0).to(tl.int64)
    length = tl.load(cu_num_draft_ptr + row).to(tl.int64) - start
    position = tl.arange(0, WIDTH)
    in_row = position < length
    flat = start + position
    draft = tl.load(draft_ids_ptr + flat, mask=in_row, other=-1).to(tl.int64)
    target = tl.load(argmax_ptr + flat * argmax_stride, mask=in_row, other=-1)
    num_draft = tl.min(tl.where((draft >= 0) & (draft < vocab_size), WIDTH, position), axis=0)
    in_draft = position < num_draft
    is_match = in_draft & (draft == target)
    allowed = in_draft
    if HAS_SCOPE:
        allowed &= tl.load(in_scope_ptr + row * width + position, mask=in_row, other=0) != 0
    readable = in_draft & (target >= 0) & (target < vocab_size)
    regret = _regret(logits_ptr + flat * logits_stride, draft, target, readable, allowed)
    protected = _holds(protected_ids_ptr + row * num_protected, num_protected, draft, target)

    gate = tl.load(gate_ptr + row).to(tl.float64)
    block_cap = tl.load(block_cap_ptr + row)
    remaining = tl.load(remaining_ptr + row)
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
        spent = tl.where(keep_exception, spent + regret_here, spent)
        kept |= (here & keep_exception).to(tl.int32)

    counts_ptr += row
    num_rows = tl.num_programs(0)
    tl.store(counts_ptr, num_draft.to(tl.int64))
    tl.store(counts_ptr + num_rows, (strict + exceptions + reused).to(tl.int64))
    tl.store(counts_ptr + 2 * num_rows, strict.to(tl.int64))
    tl.store(counts_ptr + 3 * num_rows, exceptions.to(tl.int64))
    tl.store(counts_ptr + 4 * num_rows, reused.to(tl.int64))
    tl.store(stop_ptr + row, reason.to(tl.int8))
    tl.store(charged_ptr + row, spent)
    cell = row * width + position
    tl.store(exception_regret_ptr + cell, tl.where(kept != 0, regret, -1.0), mask=position < width)
    tl.store(target_ids_ptr + cell, target, mask=position < width)
    rewrite = (kept != 0) & (tl.load(shadow_ptr + row) == 0)
    tl.store(argmax_ptr + flat * argmax_stride, draft, mask=rewrite)


def verify_drafts_triton(blocks: DraftBlocks, rows: RowLimits) -> Outcome:
    """Decide one step; :func:`.verify.verify_drafts_reference`'s contract, with the same bits.

    One launch, whatever the drafts are.

    Raises:
        ValueError: ``rows.pricing`` is unknown.
    """
    if rows.pricing not in ("remaining", "realized"):
        raise ValueError(f"pricing must be 'remaining' or 'realized', got {rows.pricing!r}")
    num_rows, width = blocks.cu_num_draft.shape[0], blocks.width
    device = blocks.logits.device
    counts = torch.empty(5, num_rows, dtype=torch.int64, device=device)
    stop = torch.empty(num_rows, dtype=torch.int8, device=device)
    charged = torch.empty(num_rows, dtype=torch.float64, device=device)
    exception_regret = torch.empty(num_rows, width, dtype=torch.float64, device=device)
    target_ids = torch.empty(num_rows, width, dtype=torch.int64, device=device)
    # A row of logits is contiguous on every path of vLLM; anything else would be copied here.
    logits = blocks.logits if blocks.logits.stride(1) == 1 else blocks.logits.contiguous()
    if num_rows:
        _verify_kernel[(num_rows,)](
            counts,
            stop,
            charged,
            exception_regret,
            target_ids,
            blocks.argmax,
            blocks.argmax.stride(0),
            logits,
            logits.stride(0),
            blocks.draft_ids.contiguous(),
            blocks.cu_num_draft.contiguous(),
            rows.remaining.contiguous(),
            rows.gate.contiguous(),
            rows.block_cap.contiguous(),
            rows.shadow.contiguous().view(torch.uint8),
            rows.protected_ids.contiguous(),
            rows.protected_ids.shape[1],
            None if rows.in_scope is None else rows.in_scope.contiguous().view(torch.uint8),
            logits.shape[1],
            width,
            HAS_SCOPE=rows.in_scope is not None,
            REALIZED=rows.pricing == "realized",
            WIDTH=triton.next_power_of_2(max(width, 1)),
            num_warps=1 if width <= 32 else 4,
        )
    num_draft, accepted, strict_accepted, exceptions, reused = counts.unbind(0)
    return Outcome(
        num_draft=num_draft,
        accepted=accepted,
        strict_accepted=strict_accepted,
        exceptions=exceptions,
        reused=reused,
        stop=stop,
        charged=charged,
        exception_regret=exception_regret,
        target_ids=target_ids,
    )
