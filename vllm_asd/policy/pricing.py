"""What one exception costs per token that it can save."""

from typing import Literal

import torch
from torch import Tensor

Pricing = Literal["remaining", "realized"]


def in_draft(num_draft: Tensor, width: int) -> Tensor:
    """Mark the positions that hold a draft token.

    Args:
        num_draft: [R] int, draft tokens per row.
        width: K, the padded width.

    Returns:
        [R, K] bool.
    """
    return torch.arange(width, device=num_draft.device) < num_draft.unsqueeze(1)


def tokens_at_stake(is_match: Tensor, num_draft: Tensor, pricing: Pricing) -> Tensor:
    """Compute q, the number of tokens that keeping position i can save.

    With draft matches ``[no, yes, yes, no]`` and four drafts, "remaining" gives ``[4, 3, 2, 1]`` and
    "realized" gives ``[3, 2, 1, 1]``.

    Args:
        is_match: [R, K] bool, the draft token is the target's argmax. Anything behind ``num_draft`` is
            ignored.
        num_draft: [R] int, draft tokens per row, 0 to K.
        pricing: "remaining" is the paper's ``num_draft - i``; "realized" is 1 + the run of matches right
            behind i.

    Returns:
        [R, K] int64, at least 1, also in the padding.

    Raises:
        ValueError: ``pricing`` is neither of the two.
    """
    width = is_match.shape[1]
    position = torch.arange(width, device=is_match.device)
    if pricing == "remaining":
        return (num_draft.to(torch.int64).unsqueeze(1) - position).clamp(min=1)
    if pricing != "realized":
        raise ValueError(f"pricing must be 'remaining' or 'realized', got {pricing!r}")
    match = is_match & in_draft(num_draft, width)
    next_break = torch.where(match, width, position).flip(1).cummin(1).values.flip(1)
    behind = torch.nn.functional.pad(next_break, (0, 1), value=width)[:, 1:]
    return behind - position


def price(regret: Tensor, is_match: Tensor, num_draft: Tensor, pricing: Pricing) -> Tensor:
    """Compute regret per token at stake, the quantity that the gate is held against.

    Args:
        regret: [R, K] float, nats. +inf, NaN and negative values mean "not acceptable".
        is_match: [R, K] bool.
        num_draft: [R] int.
        pricing: see :func:`tokens_at_stake`.

    Returns:
        [R, K] float64, nats per token; +inf where the regret is not acceptable. Not meaningful at matches.
    """
    exact = regret.to(torch.float64)
    acceptable = (exact >= 0) & (exact < torch.inf)
    return torch.where(acceptable, exact / tokens_at_stake(is_match, num_draft, pricing), torch.inf)
