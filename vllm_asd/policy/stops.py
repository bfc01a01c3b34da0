"""Why a block ended where it did."""

from enum import IntEnum

import torch
from torch import Tensor

from vllm_asd.policy.prefix import Verdict, relaxable_rows
from vllm_asd.policy.pricing import Pricing, price


class StopReason(IntEnum):
    """Values of the label ``stop``; the lower-case name is the label."""

    END = 0
    GATE = 1
    CAP = 2
    BUDGET = 3
    PROTECTED = 4
    INVALID = 5


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Read column ``index`` [R] of ``values`` [R, K]; index K reads zero."""
    return torch.nn.functional.pad(values, (0, 1)).gather(1, index.unsqueeze(1)).squeeze(1)


def stop_reason(
    regret: Tensor,
    is_match: Tensor,
    num_draft: Tensor,
    verdict: Verdict,
    remaining: Tensor,
    gate: Tensor,
    block_cap: Tensor,
    protected: Tensor | None = None,
    pricing: Pricing = "remaining",
) -> Tensor:
    """Name what ended each block.

    Looked at in this order: the proposal was accepted whole ("end"); the first token refused is protected;
    its regret is not acceptable ("invalid"); it violates the gate, the cap, the budget. The first two
    refusals come before the limits because no limit, however lax, would have kept that token. A strict row
    reports the first of gate, cap and budget that is zero, whatever its position would have cost.

    Args:
        regret: [R, K] float, as :func:`select_prefix` got it. Whether protected positions hold +inf is
            indifferent.
        is_match: [R, K] bool.
        num_draft: [R] int.
        verdict: what :func:`select_prefix` returned for the same arguments.
        remaining: [R] float64, nats left at the start of the block.
        gate: [R] float.
        block_cap: [R] int.
        protected: [R, K] bool, or None for nowhere.
        pricing: as given to :func:`select_prefix`.

    Returns:
        [R] int8, values of :class:`StopReason`.

    Raises:
        ValueError: ``pricing`` is unknown.
    """
    stop = verdict.accepted
    stop_price = _at(price(regret, is_match, num_draft, pricing), stop)
    relaxable = relaxable_rows(remaining, gate, block_cap)
    over_gate = torch.where(relaxable, ~(stop_price <= gate.to(torch.float64)), ~(gate > 0))
    over_cap = torch.where(relaxable, verdict.exceptions >= block_cap, ~(block_cap > 0))

    reason = torch.full_like(stop, StopReason.BUDGET, dtype=torch.int8)
    reason = reason.masked_fill(over_cap, StopReason.CAP).masked_fill(over_gate, StopReason.GATE)
    reason = reason.masked_fill(stop_price == torch.inf, StopReason.INVALID)
    if protected is not None:
        reason = reason.masked_fill(_at(protected, stop), StopReason.PROTECTED)
    return reason.masked_fill(stop >= num_draft, StopReason.END)
