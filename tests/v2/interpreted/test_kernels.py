"""Triton and plain torch decide alike, bit for bit, in every regime."""

import math
import os
import random

import pytest
import torch
from torch import Tensor

from tests.property.test_verify_kernels import assert_same, collate, random_case
from tests.property.verify_grid import GRID, Regime, draw
from vllm_asd.kernels import (
    BlockMaxima,
    DraftBlocks,
    RowLimits,
    blocks,
    charge_accounts_reference,
    verify_drafts_reference,
)
from vllm_asd.policy import Pricing, StopReason

triton_blocks = pytest.importorskip("vllm_asd.kernels.triton_blocks")
triton_charge = pytest.importorskip("vllm_asd.kernels.triton_charge")
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


def to(device: torch.device, record: DraftBlocks | RowLimits) -> tuple[object, ...]:
    """Move a record's tensors."""
    return tuple(x.to(device) if isinstance(x, Tensor) else x for x in record)


def assert_equal_outcomes(drafts: DraftBlocks, limits: RowLimits) -> Tensor:
    """Decide twice; returns the stop reasons."""
    argmax = drafts.argmax.clone()
    mine = triton_verify.verify_drafts_triton(drafts, limits)
    reference = drafts._replace(argmax=argmax)
    assert_same(mine, verify_drafts_reference(reference, limits))
    assert torch.equal(drafts.argmax, reference.argmax)
    return mine.stop  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pricing", ["remaining", "realized"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_deciding(cell: Regime, pricing: Pricing, dtype: torch.dtype, device: torch.device) -> None:
    assert_equal_outcomes(*draw(cell, dtype, pricing, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cell", STEPS, ids=str)
def test_a_v2_step(cell: Regime, dtype: torch.dtype, device: torch.device) -> None:
    """From the block maxima to the decision, over drafts that lie one row ahead of their logits."""
    drawn, limits = draw(cell, dtype, "remaining", device)
    chunks = [blocks.scan_blocks(chunk) for chunk in drawn.logits.split(256)]
    maxima = BlockMaxima(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))
    sampled = torch.nn.functional.pad(drawn.draft_ids[:-1], (1, 0))
    cu = torch.nn.functional.pad(drawn.cu_num_draft, (1, 0))
    # V2's requests have a row at least.
    has_rows = cu.diff() > 0
    cu = torch.cat((cu[:1], cu[1:][has_rows]))
    alignment = triton_blocks.align(maxima, sampled, cu, drawn.width)
    assert_same(alignment, blocks.align(maxima, sampled, cu, drawn.width))
    step = DraftBlocks(drawn.logits, alignment.argmax, alignment.draft_ids, cu[1:], drawn.width)
    clean = triton_blocks.free_of_nan(step, 0.5 * drawn.width)
    assert torch.equal(clean, blocks.free_of_nan(step, 0.5 * drawn.width))
    in_step = limits._replace(
        remaining=limits.remaining[has_rows],
        gate=limits.gate[has_rows],
        block_cap=limits.block_cap[has_rows],
        shadow=limits.shadow[has_rows],
        protected_ids=limits.protected_ids[has_rows],
        in_scope=clean,
    )
    assert_equal_outcomes(step, in_step)


@pytest.mark.parametrize("seed", range(2))
def test_ragged_batches_with_every_oddity(seed: int, device: torch.device) -> None:
    """The compiled CPU kernel's cases: strides, odd argmaxes, infinities, scope, both id widths."""
    rng = random.Random(seed)
    stops: set[int] = set()
    for _ in range(40):
        drafts, limits = collate(random_case(rng))
        moved = DraftBlocks(*to(device, drafts)), RowLimits(*to(device, limits))  # type: ignore[arg-type]
        stops.update(assert_equal_outcomes(*moved).tolist())
    assert stops == {int(reason) for reason in StopReason}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab_size", "block"), [(1, 32, 64), (7, 1000, 256), (3, 20000, 8192)])
def test_scanning(rows: int, vocab_size: int, block: int, dtype: torch.dtype, device: torch.device) -> None:
    """The maximum of every block, the first of a tie; -inf everywhere is a value like any other."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(rows, vocab_size, generator=generator).mul(4).round().to(dtype).to(device)
    logits[0, 1:] = -torch.inf
    mine, reference = triton_blocks.scan_blocks(logits, block), blocks.scan_blocks(logits, block)
    assert torch.equal(mine.value, reference.value)
    finite = mine.value > -torch.inf
    assert torch.equal(mine.token_id[finite], reference.token_id[finite])


def packed_steps(device: torch.device) -> tuple[DraftBlocks, BlockMaxima, Tensor, Tensor]:
    """A step as V2 lays it out: requests of 3, 0, 5 and 1 drafts, each with its bonus row."""
    generator = torch.Generator().manual_seed(3)
    cu = torch.tensor([0, 4, 5, 11, 13], dtype=torch.int32)
    logits = torch.randn(13, 600, generator=generator).mul(8).round().div(8)
    sampled = torch.randint(-1, 600, (13,), generator=generator, dtype=torch.int32)
    second = logits.topk(2).indices[:, 1].to(torch.int32)
    sampled[1:] = torch.where(torch.rand(12, generator=generator) < 0.7, second[:-1], sampled[1:])
    maxima = blocks.scan_blocks(logits, 128)
    maxima.value[4] = torch.nan  # a bonus row's maxima are uninitialised memory
    moved = [x.to(device) for x in (logits, sampled, cu, *maxima)]
    alignment = blocks.align(BlockMaxima(*moved[3:]), moved[1], moved[2], 6)
    drafts = DraftBlocks(moved[0], alignment.argmax, alignment.draft_ids, moved[2][1:], 6)
    return drafts, BlockMaxima(*moved[3:]), moved[1], moved[2]


def test_aligning(device: torch.device) -> None:
    """Argmax and draft per row, -1 for the bonus rows, and the argmax finds its way back."""
    drafts, maxima, sampled, cu = packed_steps(device)
    mine = triton_blocks.align(maxima, sampled, cu, 6)
    assert_same(mine, blocks.align(maxima, sampled, cu, 6))
    real = torch.tensor([row for row in range(13) if row != 4], device=device)
    assert torch.equal(mine.argmax[real], drafts.logits.argmax(1)[real])
    assert mine.draft_ids[[3, 4, 10, 12]].tolist() == [-1] * 4
    assert mine.draft_ids[:3].tolist() == sampled[1:4].tolist()
    mine.argmax.fill_(7)
    blocks.put_back(maxima.token_id, mine)
    assert (blocks.align(maxima, sampled, cu, 6).argmax == 7).all()


def test_looking_for_nan(device: torch.device) -> None:
    """Seen where the draft is a near miss, and nowhere else."""
    drafts, *_ = packed_steps(device)
    assert blocks.free_of_nan(drafts, 1.0).all()
    drafts.logits[:, 599] = torch.nan
    mine = triton_blocks.free_of_nan(drafts, 1.0)
    assert torch.equal(mine, blocks.free_of_nan(drafts, 1.0))
    assert 0 < (~mine).sum() < 9
    assert triton_blocks.free_of_nan(drafts, -1.0).all()


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
    copy = accounts.clone()
    expected = charge_accounts_reference(copy, slots, charged, emitted)
    moved = accounts.to(device)
    spent = triton_charge.charge_accounts_triton(
        moved, slots.to(device), charged.to(device), None if emitted is None else emitted.to(device)
    ).cpu()
    assert torch.equal(moved.cpu(), copy)
    assert torch.equal(spent[slots > 0], expected[slots > 0])
