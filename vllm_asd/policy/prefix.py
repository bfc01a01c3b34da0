"""Which draft prefix is kept, and what that costs."""

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.policy.pricing import Pricing, in_draft, price


class Verdict(NamedTuple):
    """What one verification step decides, one entry per row.

    "Accepted" counts draft tokens only: the recovery or bonus token that follows is emitted on top.

    Attributes:
        accepted: [R] int64, draft tokens kept.
        charged: [R] float64, summed regret of the kept exceptions, in nats; never above the row's
            ``remaining``.
        exceptions: [R] int64, kept tokens that are not the target's argmax.
        reused: [R] int64, kept matches that stand behind the first kept exception.
    """

    accepted: Tensor
    charged: Tensor
    exceptions: Tensor
    reused: Tensor


def strict_prefix(is_match: Tensor, num_draft: Tensor) -> Tensor:
    """Count what strict greedy verification accepts: the longest prefix of matches.

    Args:
        is_match: [R, K] bool.
        num_draft: [R] int, draft tokens per row, 0 to K.

    Returns:
        [R] int64.
    """
    match = is_match & in_draft(num_draft, is_match.shape[1])
    return match.cumprod(1).sum(1)


def relaxable_rows(remaining: Tensor, gate: Tensor, block_cap: Tensor) -> Tensor:
    """Mark the rows that may hold an exception at all: every limit above zero. NaN is not.

    Args:
        remaining: [R] float64.
        gate: [R] float.
        block_cap: [R] int.

    Returns:
        [R] bool.
    """
    return (remaining > 0) & (gate > 0) & (block_cap > 0)


def select_prefix(
    regret: Tensor,
    is_match: Tensor,
    num_draft: Tensor,
    remaining: Tensor,
    gate: Tensor,
    block_cap: Tensor,
    pricing: Pricing = "remaining",
) -> Verdict:
    """Select the longest draft prefix that the gate, the block cap and the budget allow.

    A position is feasible if it is a match or if ``regret / q <= gate``. The prefix ends before the first
    position that is not feasible, that would be exception number ``block_cap + 1``, or that would bring the
    summed regret above ``remaining``. One row, with four drafts, gate 0.25, cap 2 and 1.0 nat left::

        match   yes   no    yes   no
        regret  -     0.5   -     0.3      q = 4 3 2 1, regret / q = - 0.17 - 0.3
        kept    yes   yes   yes   no       accepted 3, charged 0.5, exceptions 1, reused 1

    Prices and sums are float64, and nothing waits for the device.

    Args:
        regret: [R, K] float, nats. +inf, NaN and negative values are not acceptable; the value at a match is
            not read. The caller sets +inf where a token is protected or out of scope.
        is_match: [R, K] bool, the draft token is the target's argmax.
        num_draft: [R] int, draft tokens per row, 0 to K. What lies behind is padding and may hold anything.
        remaining: [R] float64, nats left of the request's budget.
        gate: [R] float, nats per unit of q.
        block_cap: [R] int, exceptions per block.
        pricing: "remaining" for ``q = num_draft - i``, "realized" for 1 + the run of matches right behind i.

    Returns:
        The verdict. A row whose gate, block cap or remaining is NaN or <= 0 gets what strict verification
        accepts.

    Raises:
        ValueError: ``pricing`` is neither of the two.
    """
    valid = in_draft(num_draft, is_match.shape[1])
    match = is_match & valid
    relaxable = relaxable_rows(remaining, gate, block_cap)
    # Zeros make a row strict: a cap of 0 refuses even a free tie, and a match still passes 0 <= 0.
    rho = torch.where(relaxable, remaining, 0).to(torch.float64).unsqueeze(1)
    cap = torch.where(relaxable, block_cap, 0).unsqueeze(1)

    unit_price = price(regret, is_match, num_draft, pricing)
    # An infinite gate still refuses an infinite price.
    within_gate = (unit_price <= gate.to(torch.float64).unsqueeze(1)) & (unit_price < torch.inf)
    exception = valid & ~match & within_gate
    count = exception.cumsum(1)
    # Masked before the sum: an inf or NaN further back must not reach it.
    spent = torch.where(exception, regret.to(torch.float64), 0).cumsum(1)

    kept = ((match | exception) & (count <= cap) & (spent <= rho)).cumprod(1).bool()
    accepted = kept.sum(1)
    # The very sum that was held against rho: summed in another order it could round to above it.
    charged = torch.nn.functional.pad(spent, (1, 0)).gather(1, accepted.unsqueeze(1)).squeeze(1)
    return Verdict(
        accepted=accepted,
        charged=charged,
        exceptions=(kept & exception).sum(1),
        reused=(kept & match & (count > 0)).sum(1),
    )
