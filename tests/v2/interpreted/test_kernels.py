"""Triton and plain torch decide alike, bit for bit, in every regime."""

import math
import os
import random

import pytest
import torch
from torch import Tensor

from tests.property.test_verify_kernels import assert_same, collate, decide, random_case
from tests.property.verify_grid import GRID, Regime, draw, moved
from vllm_asd.kernels import (
    Column,
    DraftBlocks,
    MaximaBlocks,
    Outcome,
    RowLimits,
    charge_accounts_reference,
    exception_details_reference,
    verify_drafts_reference,
    verify_maxima_reference,
)
from vllm_asd.kernels.blocks import VOCAB_BLOCK, scan_blocks
from vllm_asd.policy import Pricing, StopReason

triton_charge = pytest.importorskip("vllm_asd.kernels.triton_charge")
triton_detail = pytest.importorskip("vllm_asd.kernels.triton_detail")
triton_verify = pytest.importorskip("vllm_asd.kernels.triton_verify")

# NumPy, which interprets, says so where a GPU subtracts infinities without a word.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")

# Corners of the grid: all of it takes the interpreter an hour (`VLLM_ASD_FULL=1`).
CORNERS = [
    (1, 1, 32),
    (1, 128, 1000),
    (3, 7, 151936),
    (3, 5, 49152),
    (3, 128, 32),
    (99, 5, 1000),
    (99, 7, 32),
    (512, 1, 32),
]
CELLS = GRID if torch.cuda.is_available() or os.environ.get("VLLM_ASD_FULL") else CORNERS
# The reference looks for NaN in all rows at once, which takes a byte per logit.
SCANNED = [cell for cell in CELLS if math.prod(cell) < 3e9]
STEPS = [(1, 1, 1000), (3, 7, 49152), (99, 5, 32)] if CELLS is CORNERS else SCANNED
UNWRITTEN_ID = 2**62


def assert_equal_outcomes(drafts: DraftBlocks, limits: RowLimits, width: int | None = None) -> Tensor:
    """Decide twice; returns the stop reasons."""
    reference = drafts._replace(argmax=drafts.argmax.clone())
    mine = decide(triton_verify.verify_drafts_triton, drafts, limits, width)
    assert_same(mine, decide(verify_drafts_reference, reference, limits, width))
    assert torch.equal(drafts.argmax, reference.argmax)
    return mine.column(Column.STOP)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pricing", ["remaining", "realized"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_deciding(cell: Regime, pricing: Pricing, dtype: torch.dtype, device: torch.device) -> None:
    assert_equal_outcomes(*draw(cell, dtype, pricing, device))


def as_v2(drafts: DraftBlocks) -> MaximaBlocks:
    """The same drafts as V2 lays them out: one row more per request, whose maxima nobody wrote."""
    counts = torch.diff(drafts.cu_num_draft, prepend=drafts.cu_num_draft.new_zeros(1))
    num_rows, device = counts.shape[0], drafts.logits.device
    cu = torch.nn.functional.pad((counts + 1).cumsum(0), (1, 0)).to(torch.int32)
    total = int(cu[-1])
    is_bonus = torch.zeros(total, dtype=torch.bool, device=device).index_fill_(0, cu[1:].long() - 1, True)
    is_first = torch.zeros(total, dtype=torch.bool, device=device).index_fill_(0, cu[:-1].long(), True)
    sampled = torch.zeros(total, dtype=torch.int32, device=device)
    sampled[~is_first] = drafts.draft_ids.to(torch.int32)
    chunks = [scan_blocks(chunk) for chunk in drafts.logits.split(256)]
    num_blocks = -(-drafts.logits.shape[1] // VOCAB_BLOCK)
    value = torch.full((total, num_blocks), torch.nan, device=device)
    token_id = torch.full((total, num_blocks), UNWRITTEN_ID, device=device)
    value[~is_bonus] = torch.cat([chunk[0] for chunk in chunks])
    token_id[~is_bonus] = torch.cat([chunk[1] for chunk in chunks])
    row = torch.zeros(total, dtype=torch.int64, device=device)
    row[~is_bonus] = torch.arange(drafts.logits.shape[0], device=device)
    # Rows of logits are windows into one buffer: keep them so, since copies of the largest take 40 GB.
    logits = drafts.logits if drafts.logits.stride(0) < drafts.logits.shape[1] else drafts.logits[row]
    if logits is drafts.logits:
        buffer = torch.cat([logits[r, : logits.stride(0)] for r in row.tolist()] + [logits[-1]])
        logits = buffer.as_strided((total, logits.shape[1]), (logits.stride(0), 1))
    assert num_rows == cu.shape[0] - 1
    return MaximaBlocks(logits, value, token_id, sampled, cu)


def assert_equal_steps(step: MaximaBlocks, limits: RowLimits, width: int, largest: float) -> Outcome:
    """Decide twice from block maxima; what was not rewritten keeps its bits, unwritten memory included."""
    num_rows, device = step.num_rows, step.logits.device
    mine, reference = (Outcome.empty(num_rows, width, 0, device) for _ in range(2))
    mine.table.fill_(torch.nan)
    before = step.block_argmax.clone()
    triton_verify.verify_maxima_triton(step, limits, mine, largest)
    copy = step._replace(block_argmax=before.clone())
    verify_maxima_reference(copy, limits, reference, largest)
    assert_same(mine, reference)
    assert torch.equal(step.block_argmax, copy.block_argmax)
    changed = (step.block_argmax != before).sum()
    shadow = limits.shadow.to(torch.float64)
    assert changed == int((mine.column(Column.EXCEPTIONS) * (1 - shadow)).sum())
    return mine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cell", STEPS, ids=str)
def test_a_v2_step(cell: Regime, dtype: torch.dtype, device: torch.device) -> None:
    """From the block maxima to the decision, over drafts that lie one row ahead of their logits."""
    drafts, limits = draw(cell, dtype, "remaining", device)
    step = as_v2(drafts)
    outcome = assert_equal_steps(step, limits, drafts.width, 0.5 * drafts.width)
    if cell[0] > 50:
        assert outcome.column(Column.EXCEPTIONS).any()


def test_a_v2_step_with_scope_guard_and_both_pricings(device: torch.device) -> None:
    """And with rows of sampled requests, whose argmax nobody wrote."""
    generator = torch.Generator().manual_seed(1)
    for pricing in ("remaining", "realized"):
        drafts, limits = draw((9, 5, 300), torch.float32, pricing, device)
        step = as_v2(drafts)
        scope = torch.rand(9, 5, generator=generator) < 0.7
        closed = torch.rand(9, generator=generator) < 0.3
        # Rows 2 and 7 are sampled: vLLM's, in slot 0.
        slots = limits.slots.clone()
        for row in (2, 7):
            slots[row] = 0
            step.block_argmax[int(step.cu_num_logits[row]) : int(step.cu_num_logits[row + 1])] = UNWRITTEN_ID
        limits = limits._replace(in_scope=scope.to(device), closed=closed.to(device), slots=slots)
        outcome = assert_equal_steps(step, limits, 5, 10.0)
        assert not outcome.column(Column.EXCEPTIONS)[[2, 7]].any()


@pytest.mark.parametrize("seed", range(2))
def test_ragged_batches_with_every_oddity(seed: int, device: torch.device) -> None:
    """The compiled CPU kernel's cases: strides, odd argmaxes, infinities, scope, both id widths."""
    rng = random.Random(seed)
    stops: set[int] = set()
    for _ in range(60):
        drafts, limits = collate(random_case(rng))
        limits = limits._replace(accounts=limits.accounts.contiguous())
        on_device = DraftBlocks(*moved(drafts, device)), RowLimits(*moved(limits, device))
        stops.update(map(int, assert_equal_outcomes(*on_device).tolist()))
    assert stops == {int(reason) for reason in StopReason}


def test_the_outcome_may_be_wider_than_the_step(device: torch.device) -> None:
    """N-grams propose fewer tokens in one step than in another, for the same table and the same kernel."""
    drafts, limits = draw((7, 3, 100), torch.float32, "realized", device)
    assert_equal_outcomes(drafts, limits, 8)


def packed_step(device: torch.device) -> MaximaBlocks:
    """Requests of 3, 0, 5 and 1 drafts with near misses, each with its bonus row."""
    generator = torch.Generator().manual_seed(3)
    cu = torch.tensor([0, 4, 5, 11, 13], dtype=torch.int32)
    logits = torch.randn(13, 600, generator=generator).mul(8).round().div(8)
    sampled = torch.randint(-1, 600, (13,), generator=generator, dtype=torch.int32)
    second = logits.topk(2).indices[:, 1].to(torch.int32)
    sampled[1:] = torch.where(torch.rand(12, generator=generator) < 0.7, second[:-1], sampled[1:])
    value, token_id = scan_blocks(logits)
    for bonus in (cu[1:] - 1).tolist():
        value[bonus], token_id[bonus] = torch.nan, UNWRITTEN_ID
    return MaximaBlocks(*(x.to(device) for x in (logits, value, token_id, sampled, cu)))


def lax_limits(device: torch.device) -> RowLimits:
    """Four rows that keep nearly everything."""
    limits = RowLimits.of(
        remaining=torch.full((4,), 100.0, dtype=torch.float64),
        gate=torch.full((4,), 9.0),
        block_cap=torch.full((4,), 2),
        shadow=torch.zeros(4, dtype=torch.bool),
        protected_ids=torch.full((4, 1), -1),
        vocab_size=600,
    )
    return RowLimits(*moved(limits, device))


def test_looking_for_nan(device: torch.device) -> None:
    """Seen where the draft is a near miss, and nowhere else: no exception there, wherever the NaN stands."""
    clean = assert_equal_steps(packed_step(device), lax_limits(device), 5, 45.0)
    assert clean.column(Column.EXCEPTIONS).sum() > 3
    step = packed_step(device)
    step.logits[:, 599] = torch.nan
    assert not assert_equal_steps(step, lax_limits(device), 5, 45.0).column(Column.EXCEPTIONS).any()
    # Beyond what may be kept, rows are not read.
    step.logits[:, 599] = torch.nan
    assert assert_equal_steps(step, lax_limits(device), 5, -1.0).column(Column.EXCEPTIONS).any()


@pytest.mark.parametrize("is_maxima", [False, True])
def test_details(is_maxima: bool, device: torch.device) -> None:
    """The kept token and the target's log-probability, zeros after the last exception."""
    num_rows = 40
    drafts, limits = draw((num_rows, 5, 9000), torch.float32, "remaining", device)
    # Columns of vllm_asd.kernels.accounts: keep nearly everything.
    limits.accounts[1:, :6] = torch.tensor([99.0, 0.0, 99.0, 0.0, 9.0, 3.0], device=device)
    step = as_v2(drafts) if is_maxima else drafts
    mine, reference = (Outcome.empty(num_rows, 5, 3, device) for _ in range(2))
    mine.table.fill_(torch.nan)
    if isinstance(step, MaximaBlocks):
        triton_verify.verify_maxima_triton(step, limits, mine, 9.0)
    else:
        triton_verify.verify_drafts_triton(step, limits, mine)
    reference.table.copy_(mine.table)
    triton_detail.exception_details_triton(step, mine)
    exception_details_reference(step, reference)
    assert (mine.exception_regret >= 0).sum() > 5
    torch.testing.assert_close(mine.table, reference.table, rtol=1e-5, atol=1e-5)
    assert torch.equal(mine.details[:, :3], reference.details[:, :3])


@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize("num_rows", [1, 7, 300])
def test_charging(num_rows: int, refill: bool, device: torch.device) -> None:
    """Charges above what is left, refills up to the budget, and dummy rows that carry anything."""
    generator = torch.Generator().manual_seed(num_rows)
    accounts = torch.rand(num_rows + 1, 7, generator=generator, dtype=torch.float64)
    accounts[:, 2] += 0.5
    accounts[0] = 0
    slots = torch.randperm(num_rows, generator=generator) + 1
    slots[num_rows // 2 :: 3] = 0
    charged = torch.rand(num_rows, generator=generator, dtype=torch.float64) * 1.2
    charged[slots == 0] = (
        torch.tensor([torch.nan, -torch.inf]).repeat(num_rows)[: int((slots == 0).sum())].double()
    )
    emitted = torch.randint(0, 9, (num_rows,), generator=generator) if refill else None
    copy, expected = accounts.clone(), torch.empty(num_rows, dtype=torch.float64)
    before = charge_accounts_reference(copy, slots, charged, emitted, expected)
    on_device = accounts.to(device)
    spent = torch.full((num_rows, 3), torch.nan, dtype=torch.float64, device=device)[:, 1]
    mine = triton_charge.charge_accounts_triton(
        on_device,
        slots.to(device),
        charged.to(device),
        None if emitted is None else emitted.to(device),
        spent,
    )
    assert torch.equal(on_device.cpu(), copy)
    assert torch.equal(spent.cpu(), expected)
    assert torch.equal(mine.cpu(), before)
