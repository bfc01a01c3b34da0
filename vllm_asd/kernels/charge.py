"""Charging of one step's cost, in plain torch: the specification of the faster versions."""

import torch
from torch import Tensor

# Columns of an account; what else a row holds stands behind them.
REMAINING, GRANTED, BUDGET, REFILL = range(4)


def charge_accounts_reference(
    accounts: Tensor, slots: Tensor, charged: Tensor, emitted_tokens: Tensor | None
) -> Tensor:
    """Take what a step cost, then credit the refill, up to the budget.

    Args:
        accounts: [S, >= 4] float64, nats; the columns above, rewritten in place. Row 0 stays zero.
        slots: [R] int64, rows of ``accounts``; distinct, except that 0 may occur any number of times.
        charged: [R] float64, nats, >= 0. In slot 0 anything, NaN included.
        emitted_tokens: [R] int, tokens that the step emitted for each row; None credits nothing.

    Returns:
        [R] float64, what each request has spent so far, in nats; not meaningful for slot 0.
    """
    columns = accounts.index_select(0, slots).unbind(1)
    granted = columns[GRANTED]
    after = torch.where(slots > 0, columns[REMAINING] - charged, 0).clamp_(min=0)
    if emitted_tokens is not None:
        refilled = torch.minimum(columns[BUDGET], after + columns[REFILL] * emitted_tokens)
        granted = granted + (refilled - after)
        after = refilled
        accounts[:, GRANTED].index_copy_(0, slots, granted)
    accounts[:, REMAINING].index_copy_(0, slots, after)
    return columns[BUDGET] + granted - after
