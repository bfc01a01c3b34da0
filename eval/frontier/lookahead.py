"""The best that any rule could do with a block: the yardstick for the rules that walk it token by token."""

import torch
from torch import Tensor

from vllm_asd.policy.prefix import Verdict, relaxable_rows
from vllm_asd.policy.pricing import in_draft


def best_prefix(
    regret: Tensor,
    is_match: Tensor,
    num_draft: Tensor,
    remaining: Tensor,
    gate: Tensor,
    block_cap: Tensor,
) -> Verdict:
    """Select the prefix that is worth most at a given price: ``n - charged / gate`` over all lengths n.

    What is accepted is a prefix and every mismatch inside it must be paid, so the search is only over where
    to stop. :func:`select_prefix` stops at the first exception that is too dear by itself; here one may be
    paid because what stands behind it makes up for it, and nothing is paid at the end that buys too little.
    One row, seven drafts, gate 0.25, cap 2::

        match   no    no    yes   yes   yes   no    yes
        regret  0.5   0.2   -     -     -     0.6   -
        value   -1    -0.8  0.2   1.2   2.2   0.8   1.8    of the prefix that ends here
        kept    yes   yes   yes   yes   yes   no    no     accepted 5, charged 0.7, exceptions 2, reused 3

    "realized" pricing keeps nothing of it (0.5 nats for one token), and with a cap of 1 neither does this.

    At the same limits no other choice of prefixes has a higher sum of ``tokens - charged / gate`` over the
    same blocks: its pairs of tokens per round and nats per round lie on the frontier of all rules (on its
    concave hull), as long as budget and cap do not bind. Other trajectories bring other blocks; of those it
    says nothing. O(K), in float64, and nothing waits for the device.

    Args:
        regret: [R, K] float, nats. +inf, NaN and negative values are not acceptable; the value at a match is
            not read.
        is_match: [R, K] bool, the draft token is the target's argmax.
        num_draft: [R] int, draft tokens per row, 0 to K. What lies behind is padding and may hold anything.
        remaining: [R] float64, nats left of the request's budget.
        gate: [R] float, nats that one token gained may cost, on average over what is gained. +inf selects the
            longest prefix within cap and budget.
        block_cap: [R] int, exceptions per block.

    Returns:
        The verdict; of prefixes worth the same, the longest. A row whose gate, block cap or remaining is NaN
        or <= 0 gets what strict verification accepts.
    """
    width = is_match.shape[1]
    valid = in_draft(num_draft, width)
    match = is_match & valid
    relaxable = relaxable_rows(remaining, gate, block_cap)
    rho = torch.where(relaxable, remaining, 0).to(torch.float64).unsqueeze(1)
    cap = torch.where(relaxable, block_cap, 0).unsqueeze(1)
    # Strict rows pay nothing, at any price but 0 / 0.
    unit = torch.where(relaxable, gate, 1).to(torch.float64).unsqueeze(1)

    exact = regret.to(torch.float64)
    exception = valid & ~match & (exact >= 0) & (exact < torch.inf)
    count = exception.cumsum(1)
    # Masked before the sum: an inf or NaN further back must not reach it.
    spent = torch.where(exception, exact, 0).cumsum(1)
    within_limits = ((match | exception) & (count <= cap) & (spent <= rho)).cumprod(1).bool()

    length = torch.arange(width + 1, device=is_match.device)
    value = torch.where(within_limits, length[1:] - spent / unit, -torch.inf)
    value = torch.nn.functional.pad(value, (1, 0))
    best = value.max(1, keepdim=True).values
    accepted = torch.where(value == best, length, 0).max(1).values

    kept = length[:-1] < accepted.unsqueeze(1)
    # The very sum that was held against rho: summed in another order it could round to above it.
    charged = torch.nn.functional.pad(spent, (1, 0)).gather(1, accepted.unsqueeze(1)).squeeze(1)
    return Verdict(
        accepted=accepted,
        charged=charged,
        exceptions=(kept & exception).sum(1),
        reused=(kept & match & (count > 0)).sum(1),
    )
