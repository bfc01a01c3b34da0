"""The compiled CPU kernel against the reference over the grid of batch sizes, lengths and vocabularies."""

import importlib
from importlib.util import find_spec

import pytest
import torch

from tests.property.test_verify_kernels import assert_same, decide
from tests.property.verify_grid import Regime, chosen_cells, draw
from vllm_asd.kernels import Column, verify_drafts_reference
from vllm_asd.policy import Pricing

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pricing", ["remaining", "realized"])
@pytest.mark.parametrize("cell", chosen_cells(largest=8_000_000), ids=str)
def test_equals_the_reference(cell: Regime, pricing: Pricing, dtype: torch.dtype) -> None:
    """Near-ties and ties, -inf, NaN, placeholders and ids outside the vocabulary, in ragged rows."""
    mine, limits = draw(cell, dtype, pricing)
    reference = mine._replace(argmax=mine.argmax.clone())
    outcome = decide(importlib.import_module("vllm_asd.kernels.cpu").verify_drafts_cpu, mine, limits)
    assert_same(outcome, decide(verify_drafts_reference, reference, limits))
    assert torch.equal(mine.argmax, reference.argmax)


def test_the_cells_are_not_idle() -> None:
    """Exceptions, several in one block, reused matches and rows with NaN: all there."""
    mine, limits = draw((99, 7, 1000), torch.bfloat16, "remaining")
    assert mine.logits.isnan().any()
    outcome = decide(verify_drafts_reference, mine, limits)
    assert (outcome.column(Column.EXCEPTIONS) >= 2).any()
    assert (outcome.column(Column.REUSED) > 0).any()
    assert len(outcome.column(Column.STOP).unique()) >= 5
