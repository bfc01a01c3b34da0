"""Triton and plain torch see the same phase, whatever a block holds."""

import pytest
import torch
from torch import Tensor

from vllm_asd.kernels import (
    DraftBlocks,
    MaximaBlocks,
    ThinkMarkers,
    draft_scope_reference,
    follow_phases_reference,
)

triton_phases = pytest.importorskip("vllm_asd.kernels.triton_phases")

MARKERS = ThinkMarkers(start=1, end=2)


def tokens(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Few other tokens, so that markers are frequent; -1 among them."""
    return torch.randint(-1, 9, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("per_phase", [False, True])
@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (7, 5), (20, 8), (3, 40)])
def test_the_scope_of_drafts(num_rows: int, width: int, per_phase: bool, device: torch.device) -> None:
    """Ragged rows, empty ones too, in V1's layout and in V2's."""
    generator = torch.Generator().manual_seed(width)
    lengths = torch.randint(0, width + 1, (num_rows,), generator=generator)
    thinking = (torch.rand(num_rows, generator=generator) < 0.5).to(device)
    logits = torch.empty(0, device=device)
    cu = lengths.cumsum(0).to(torch.int32)
    drafts = tokens((int(cu[-1]),), generator, torch.int32).to(device)
    first = DraftBlocks(logits, logits, drafts, cu.to(device), width)
    cu_logits = torch.nn.functional.pad((lengths + 1).cumsum(0), (1, 0)).to(torch.int32)
    sampled = tokens((int(cu_logits[-1]),), generator, torch.int32).to(device)
    second = MaximaBlocks(logits, logits, logits, sampled, cu_logits.to(device))
    for blocks in (first, second):
        arguments = (thinking, MARKERS, per_phase, width)
        mine = triton_phases.draft_scope_triton(blocks, *arguments)
        assert torch.equal(mine, draft_scope_reference(blocks, *arguments))


@pytest.mark.parametrize("has_counts", [False, True])
@pytest.mark.parametrize("has_discarded", [False, True])
@pytest.mark.parametrize(
    ("num_rows", "width", "dtype"), [(1, 1, torch.int64), (20, 6, torch.int32), (9, 70, torch.int64)]
)
def test_following_what_was_emitted(
    num_rows: int, width: int, dtype: torch.dtype, has_counts: bool, has_discarded: bool, device: torch.device
) -> None:
    """Tokens that do not count, rows that are thrown away, and rows that belong to nobody."""
    generator = torch.Generator().manual_seed(width)
    ids = tokens((num_rows, width), generator, dtype).to(device)
    slots = (torch.randperm(num_rows, generator=generator) + 1).to(device)
    slots[::3] = 0
    thinking = (torch.rand(num_rows, generator=generator) < 0.5).to(device) & (slots > 0)
    counts = torch.randint(0, width + 1, (num_rows,), generator=generator, dtype=torch.int32).to(device)
    discarded = (torch.rand(num_rows, generator=generator) < 0.3).to(device)
    state = torch.zeros(num_rows + 1, 1, dtype=torch.float64, device=device)
    state[slots, 0] = thinking.to(torch.float64)
    expected = state.clone()
    given = (counts if has_counts else None, discarded if has_discarded else None, thinking, MARKERS)
    follow_phases_reference(expected, slots, ids, *given)
    triton_phases.follow_phases_triton(state, slots, ids, *given)
    assert torch.equal(state, expected)
    assert state[0, 0] == 0
