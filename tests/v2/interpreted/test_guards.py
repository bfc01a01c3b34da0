"""Triton and plain torch watch alike, step after step, bit for bit."""

import pytest
import torch

from vllm_asd.kernels import Column, Outcome, follow_guards_reference
from vllm_asd.kernels.guards import GUARD_WIDTHS

triton_guards = pytest.importorskip("vllm_asd.kernels.triton_guards")

NUM_SLOTS, WIDTH = 12, 5
STEPS = 24


def decided(num_rows: int, generator: torch.Generator) -> Outcome:
    """Decisions as far as a guard reads them; half of the rows are under shadow."""
    outcome = Outcome(torch.full((num_rows, 2 * WIDTH + len(Column)), torch.nan, dtype=torch.float64), WIDTH)
    accepted = torch.randint(0, WIDTH + 1, (num_rows,), generator=generator)
    kept = torch.rand(num_rows, WIDTH, generator=generator) < 0.4
    kept &= torch.arange(WIDTH) < accepted.unsqueeze(1)
    outcome.exception_regret.copy_(torch.where(kept, 0.1, -1.0))
    outcome.column(Column.ACCEPTED).copy_(accepted)
    outcome.column(Column.SHADOW).copy_(torch.arange(num_rows) % 2)
    return outcome


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_watching(layout: str, device: torch.device) -> None:
    """Texts that loop or do not, clusters, partial prefills, steps without drafts, nobody's rows."""
    generator = torch.Generator().manual_seed(5)
    state = torch.zeros(NUM_SLOTS + 1, 1 + sum(GUARD_WIDTHS), dtype=torch.float64, device=device)
    expected = state.clone()
    # Loops of every period up to 9 in some rows, in others tokens that never come again.
    position = torch.zeros(NUM_SLOTS + 1, dtype=torch.int64)

    def on_device(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.to(device)

    guarded: set[float] = set()
    for step in range(STEPS):
        slots = torch.randperm(NUM_SLOTS, generator=generator)[:9] + 1
        slots[4] = 0
        drafts = step % 4 != 3
        width = WIDTH + 1 if drafts else 1
        outcome = decided(len(slots), generator) if drafts else None
        count = torch.randint(1, width + 1, (len(slots),), generator=generator)
        if outcome is not None:
            count = torch.where(
                outcome.column(Column.SHADOW) != 0, count, outcome.counts(Column.ACCEPTED) + 1
            )
        place = position[slots].unsqueeze(1) + torch.arange(width)
        period = 1 + slots.unsqueeze(1)
        ids = torch.where(slots.unsqueeze(1) % 2 == 0, place % period, 100 + place)
        num_tokens = discarded = None
        if layout == "v1":
            ids = torch.where(torch.arange(width) < count.unsqueeze(1), ids, -1).to(torch.int32)
            discarded = torch.rand(len(slots), generator=generator) < 0.1
            count = count.masked_fill(discarded, 0)
        else:
            count = count.masked_fill(torch.rand(len(slots), generator=generator) < 0.1, 0)
            num_tokens = count.to(torch.int32)
        position[slots] += count
        emitted = (ids.to(device), on_device(num_tokens), on_device(discarded))
        mine = None if outcome is None else Outcome(outcome.table.to(device, copy=True), WIDTH)
        reference = None if outcome is None else Outcome(outcome.table.to(device, copy=True), WIDTH)
        triton_guards.follow_guards_triton(state, slots.to(device), *emitted, mine)
        follow_guards_reference(expected, slots.to(device), *emitted, reference)
        assert torch.equal(state, expected)
        if mine is not None and reference is not None:
            assert torch.equal(mine.table.nan_to_num(-7), reference.table.nan_to_num(-7))
            guarded.update(mine.column(Column.GUARD).tolist())
    assert guarded == {0.0, 1.0, 2.0}
    assert not state[0].any()
    assert 0 < int(state[:, 0].sum()) < NUM_SLOTS
