"""Inside the model's reasoning or not, in plain torch: the specification of :mod:`.triton_phases`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels.blocks import MaximaBlocks, padded_drafts
from vllm_asd.kernels.verify import DraftBlocks


class ThinkMarkers(NamedTuple):
    """Token ids that open and close the model's reasoning, from vLLM's reasoning configuration."""

    start: int
    end: int


def thinking_after(ids: Tensor, thinking: Tensor, markers: ThinkMarkers) -> Tensor:
    """Follow the phase through tokens.

    Args:
        ids: [R, W] int, tokens in order; -1 is padding.
        thinking: [R] bool, the phase before the first token.
        markers: The two ids.

    Returns:
        [R, W] bool, the phase after each token.
    """
    start, end = ids == markers.start, ids == markers.end
    position = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    last_marker = torch.where(start | end, position, 0).cummax(1).values
    opened = torch.nn.functional.pad(start, (1, 0)).gather(1, last_marker)
    return torch.where(last_marker > 0, opened, thinking.unsqueeze(1))


def in_reasoning(draft_ids: Tensor, thinking: Tensor, markers: ThinkMarkers) -> Tensor:
    """Mark the draft positions that lie inside the reasoning; the markers themselves do not.

    Args:
        draft_ids: [R, K] int, padded with -1.
        thinking: [R] bool, the phase before the block.
        markers: The two ids.

    Returns:
        [R, K] bool.
    """
    after = thinking_after(draft_ids, thinking, markers)
    before = torch.cat((thinking.unsqueeze(1), after[:, :-1]), dim=1)
    return before & (draft_ids != markers.start) & (draft_ids != markers.end)


def before_marker(draft_ids: Tensor, markers: ThinkMarkers) -> Tensor:
    """Mark the draft positions that lie in the phase in which the block begins, wherever that is.

    Args:
        draft_ids: [R, K] int, padded with -1.
        markers: The two ids.

    Returns:
        [R, K] bool, False at the block's first marker and behind it.
    """
    is_marker = (draft_ids == markers.start) | (draft_ids == markers.end)
    return is_marker.cumsum(1) == 0


def draft_scope_reference(
    blocks: DraftBlocks | MaximaBlocks, thinking: Tensor, markers: ThinkMarkers, per_phase: bool, width: int
) -> Tensor:
    """Say where exceptions may be made.

    Args:
        blocks: A step's drafts.
        thinking: [R] bool, the phase before each block.
        markers: The two ids.
        per_phase: Whether the block's own phase counts, whichever it is, or the reasoning alone.
        width: K.

    Returns:
        [R, K] bool.
    """
    draft_ids = padded_drafts(blocks, width)
    return before_marker(draft_ids, markers) if per_phase else in_reasoning(draft_ids, thinking, markers)


def follow_phases_reference(
    state: Tensor,
    slots: Tensor,
    ids: Tensor,
    num_tokens: Tensor | None,
    discarded: Tensor | None,
    thinking: Tensor,
    markers: ThinkMarkers,
) -> None:
    """Move phases through the tokens that a step emitted.

    Args:
        state: [S, 1] float64, 1 inside the reasoning; rewritten in place. Row 0 stays zero.
        slots: [R] int64, rows of ``state``; distinct, except that 0 may occur any number of times.
        ids: [R, W] int, in order; -1 is no token.
        num_tokens: [R] int, how many of them count; None for all.
        discarded: [R] bool, rows none of whose tokens counts; None for none.
        thinking: [R] bool, the phases before them.
        markers: The two ids.
    """
    if num_tokens is not None:
        ids = torch.where(torch.arange(ids.shape[1], device=ids.device) < num_tokens.unsqueeze(1), ids, -1)
    if discarded is not None:
        ids = ids.masked_fill(discarded.unsqueeze(1), -1)
    after = thinking_after(ids, thinking, markers)[:, -1]
    state[slots, 0] = torch.where(slots > 0, after, False).to(torch.float64)
