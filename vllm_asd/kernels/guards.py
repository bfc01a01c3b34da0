"""Guards that watch what requests emit, in plain torch: the specification of :mod:`.triton_guards`.

A guard's row holds its latch, the last tokens (a token is kept as its id plus one, so that zeros are an empty
output), the run of each period, and which of the last tokens were exceptions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_asd.kernels.outcome import Column, Outcome
from vllm_asd.policy.guard import (
    CLUSTER_WINDOW,
    LONGEST_PERIOD,
    extend_runs,
    is_clustered,
    is_looping,
    shift_in,
)

GUARD_WIDTHS = (LONGEST_PERIOD, LONGEST_PERIOD, CLUSTER_WINDOW)


def advance_guards(
    state: Tensor,
    slots: Tensor,
    emitted_ids: Tensor,
    exceptions: Tensor | None,
    shadow_tokens: Tensor | None,
) -> Tensor:
    """Add what a step emitted, and trip the guards of the outputs that now loop or hold a cluster.

    Under shadow the emitted tokens are strict's and hold no exception. Loops are then looked for in that
    text, and clusters in what would have been emitted: the block's exceptions, over its tokens. Behind the
    first exception that is a forecast, as all of shadow's figures are.

    Args:
        state: [S, 1 + 64 + 64 + 64] float64, rewritten in place. Row 0 stays zero.
        slots: [R] int64, rows of ``state``; distinct, except that 0 may occur any number of times.
        emitted_ids: [R, E] int, the step's tokens in order, padded with -1; a row of a partial prefill, or
            one that vLLM discards, has none.
        exceptions: [R, K] bool, draft positions at which an exception was kept, or None when the step
            verified no drafts.
        shadow_tokens: [R] int, at most E: tokens of the block had it been enforced, for rows under shadow;
            -1 for the others. None when all are.

    Returns:
        [R] bool, the latches from now on.
    """
    width = emitted_ids.shape[1]
    emitted = torch.where(slots.unsqueeze(1) > 0, emitted_ids, -1)
    count = (emitted >= 0).sum(1)
    latch, recent, runs, flags = torch.split(state.index_select(0, slots), [1, *GUARD_WIDTHS], dim=1)

    tokens = (emitted + 1).to(torch.float64)
    runs = extend_runs(runs, recent, tokens, count)
    recent = shift_in(recent, tokens, count)
    if exceptions is None:
        marks = torch.zeros_like(tokens)
    else:
        marks = torch.nn.functional.pad(exceptions.to(torch.float64), (0, width - exceptions.shape[1]))
    if shadow_tokens is not None:
        count = torch.where((shadow_tokens >= 0) & (count > 0), shadow_tokens, count)
    flags = shift_in(flags, marks, count)

    tripped = (latch.squeeze(1) != 0) | is_looping(runs) | is_clustered(flags)
    latch = tripped.to(torch.float64).unsqueeze(1)
    state[slots] = torch.cat((latch, recent, runs, flags), dim=1)
    return tripped


def follow_guards_reference(
    state: Tensor,
    slots: Tensor,
    ids: Tensor,
    num_tokens: Tensor | None,
    discarded: Tensor | None,
    outcome: Outcome | None,
) -> None:
    """Show guards what a step emitted; :func:`advance_guards` says how they take it.

    Args:
        state: As there.
        slots: As there.
        ids: [R, E] int, in order; -1 is no token.
        num_tokens: [R] int, how many of them count; None for all.
        discarded: [R] bool, rows none of whose tokens counts; None for none.
        outcome: The step's decisions, whose guard column is written; None when it verified no drafts.
    """
    if num_tokens is not None:
        ids = torch.where(torch.arange(ids.shape[1], device=ids.device) < num_tokens.unsqueeze(1), ids, -1)
    if discarded is not None:
        ids = ids.masked_fill(discarded.unsqueeze(1), -1)
    if outcome is None:
        advance_guards(state, slots, ids, None, None)
        return
    before = state[:, 0].index_select(0, slots)
    shadow = outcome.column(Column.SHADOW) != 0
    shadow_tokens = torch.where(shadow, outcome.counts(Column.ACCEPTED) + 1, -1)
    tripped = advance_guards(state, slots, ids, outcome.exception_regret >= 0, shadow_tokens)
    outcome.column(Column.GUARD).copy_(before + tripped)
