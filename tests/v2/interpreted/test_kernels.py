"""Triton and plain torch decide alike, bit for bit, in every regime."""

import random

import pytest
import torch
from torch import Tensor

from tests.property.test_verify_kernels import assert_same, collate, random_case
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

# Requests, drafts, vocabulary: corners of a grid that is too much for the interpreter.
REGIMES = [
    (1, 1, 32),
    (1, 128, 1000),
    (3, 7, 151936),
    (3, 5, 49152),
    (3, 128, 32),
    (99, 5, 1000),
    (99, 7, 32),
    (512, 1, 32),
]
ON_A_GPU = [(512, 7, 1000), (512, 128, 1000), (99, 128, 49152), (256, 7, 151936)]


def to(device: torch.device, record: DraftBlocks | RowLimits) -> tuple[object, ...]:
    """Move a record's tensors."""
    return tuple(x.to(device) if isinstance(x, Tensor) else x for x in record)


def draw(
    regime: tuple[int, int, int], dtype: torch.dtype, pricing: Pricing, device: torch.device
) -> tuple[DraftBlocks, RowLimits]:
    """Draw ragged rows of near-ties, placeholders, ids outside the vocabulary, -inf and NaN."""
    num_rows, num_draft, vocab_size = regime
    generator = torch.Generator().manual_seed(sum(regime))
    lengths = torch.randint(0, num_draft + 1, (num_rows,), generator=generator)
    lengths[0] = num_draft
    cu = lengths.cumsum(0).to(torch.int32)
    total = int(lengths.sum())
    # Coarse values tie often, and bf16 ties them more.
    logits = torch.randn(total, vocab_size, generator=generator).mul(16).round().div(16).to(dtype)
    top = logits.float().topk(3, 1).indices
    pick = torch.randint(-1, 3, (total,), generator=generator).clamp(min=0)
    draft_ids = top.gather(1, pick.unsqueeze(1)).squeeze(1)
    odd = torch.rand(total, generator=generator)
    draft_ids = draft_ids.masked_fill(odd < 0.02, -1).masked_fill(odd > 0.98, vocab_size).to(torch.int32)
    rows = torch.arange(total)
    logits[rows[odd.argsort()[total // 2 : total // 2 + 2]], 3] = torch.nan
    logits[
        rows[:: max(1, total // 3)], draft_ids[:: max(1, total // 3)].clamp(0, vocab_size - 1)
    ] = -torch.inf
    drafts = DraftBlocks(logits, logits.argmax(1), draft_ids, cu, num_draft)
    limits = RowLimits(
        remaining=torch.rand(num_rows, generator=generator, dtype=torch.float64) * 2 - 0.2,
        gate=torch.rand(num_rows, generator=generator, dtype=torch.float64) * 0.5 - 0.05,
        block_cap=torch.randint(0, 5, (num_rows,), generator=generator, dtype=torch.int32),
        shadow=torch.rand(num_rows, generator=generator) < 0.2,
        protected_ids=torch.randint(-1, vocab_size, (num_rows, 2), generator=generator),
        in_scope=None,
        pricing=pricing,
    )
    return DraftBlocks(*to(device, drafts)), RowLimits(*to(device, limits))  # type: ignore[arg-type]


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
@pytest.mark.parametrize("regime", REGIMES)
def test_regimes(
    regime: tuple[int, int, int], pricing: Pricing, dtype: torch.dtype, device: torch.device
) -> None:
    assert_equal_outcomes(*draw(regime, dtype, pricing, device))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("regime", ON_A_GPU)
def test_large_regimes(regime: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    assert_equal_outcomes(*draw(regime, dtype, "remaining", device))


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
