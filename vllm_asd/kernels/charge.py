"""Charging of one step's cost, in plain torch: the specification of the faster versions."""

import torch
from torch import Tensor

from vllm_asd.kernels.accounts import BUDGET, GRANTED, REFILL, REMAINING


def charge_accounts_reference(
    accounts: Tensor, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None, spent: Tensor
) -> Tensor:
    """Take what a step cost, then credit the refill, up to the budget.

    Args:
        accounts: [S, >= 4] float64, nats; REMAINING and GRANTED are rewritten in place. Row 0 stays zero.
        slots: [R] int64, rows of ``accounts``; distinct, except that 0 may occur any number of times.
        charged: [R] float64 of any stride, nats, >= 0. In slot 0 anything, NaN included.
        emitted_tokens: [R] int, tokens that the step emitted for each row; None credits nothing.
        spent: [R] float64 of any stride, written: what each request has spent so far, in nats; 0 in slot 0.

    Returns:
        [R, 2] float64: REMAINING and GRANTED as they were, which undoes the step when written back.
    """
    columns = accounts.index_select(0, slots).unbind(1)
    remaining, granted = columns[REMAINING], columns[GRANTED]
    after = torch.where(slots > 0, remaining - charged, 0).clamp_(min=0)
    if emitted_tokens is not None:
        refilled = torch.minimum(columns[BUDGET], after + columns[REFILL] * emitted_tokens)
        granted = granted + (refilled - after)
        after = refilled
        accounts[:, GRANTED].index_copy_(0, slots, granted)
    accounts[:, REMAINING].index_copy_(0, slots, after)
    spent.copy_(columns[BUDGET] + granted - after)
    return torch.stack((remaining, columns[GRANTED]), dim=1)
