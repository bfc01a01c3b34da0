"""The grid of shapes on which every implementation is held against the reference, and how a step is drawn.

The largest cells would need 40 GB of logits. Their rows are windows into one buffer, a few hundred tokens
apart: every row is another, and no kernel can tell.
"""

import itertools
import os
from typing import Any

import torch
from torch import Tensor

from vllm_asd.kernels import DraftBlocks, ProtectedIds, RowLimits
from vllm_asd.policy import Pricing

Regime = tuple[int, int, int]

# Requests, drafts, vocabulary.
GRID: list[Regime] = list(itertools.product((1, 3, 99, 512), (1, 5, 7, 128), (32, 1000, 49152, 151936)))
_BUFFER_SIZE = 2**24


def chosen_cells(largest: int) -> list[Regime]:
    """The cells with at most so many logits; all of them with `VLLM_ASD_FULL=1`."""
    if os.environ.get("VLLM_ASD_FULL"):
        return GRID
    return [cell for cell in GRID if cell[0] * cell[1] * cell[2] <= largest]


def draw(
    regime: Regime, dtype: torch.dtype, pricing: Pricing, device: torch.device | str = "cpu"
) -> tuple[DraftBlocks, RowLimits]:
    """Draw ragged rows of near-ties and ties, placeholders, ids outside the vocabulary, -inf and NaN."""
    num_rows, num_draft, vocab_size = regime
    generator = torch.Generator().manual_seed(sum(regime))
    lengths = torch.randint(0, num_draft + 1, (num_rows,), generator=generator)
    lengths[0] = num_draft
    total = int(lengths.sum())
    stride = min(vocab_size, max(1, _BUFFER_SIZE // total))
    # Sixteenths tie often.
    buffer = torch.randn(total * stride + vocab_size, generator=generator).mul(16).round().div(16).to(dtype)
    logits = buffer.as_strided((total, vocab_size), (stride, 1))
    half = vocab_size // 2
    left, right = _argmax(logits[:, :half]), _argmax(logits[:, half:]) + half
    random_ids = torch.randint(0, vocab_size, (total,), generator=generator)
    candidates = torch.stack((left, right, random_ids), 1)
    by_logit = logits.gather(1, candidates).float().argsort(dim=1, descending=True, stable=True)
    # Mostly the best of them, often the second, seldom the last.
    rank = torch.tensor([0, 0, 0, 1, 1, 2])[torch.randint(0, 6, (total,), generator=generator)]
    draft_ids = candidates.gather(1, by_logit.gather(1, rank.unsqueeze(1))).squeeze(1)
    every = max(1, total // 3)
    buffer[torch.arange(0, total, every) * stride + draft_ids[::every]] = -torch.inf
    if total > 2:
        buffer[torch.randperm(total, generator=generator)[:2] * stride + 3] = torch.nan
    odd = torch.rand(total, generator=generator)
    draft_ids = draft_ids.masked_fill(odd < 0.02, -1).masked_fill(odd > 0.98, vocab_size).to(torch.int32)
    protected_ids = torch.randint(-1, vocab_size, (num_rows, 2), generator=generator)
    limits = RowLimits.of(
        remaining=torch.rand(num_rows, generator=generator, dtype=torch.float64) * 2 - 0.2,
        gate=torch.rand(num_rows, generator=generator, dtype=torch.float64) * 0.5 - 0.05,
        block_cap=torch.randint(0, 5, (num_rows,), generator=generator, dtype=torch.int32),
        shadow=torch.rand(num_rows, generator=generator) < 0.2,
        protected_ids=protected_ids,
        vocab_size=vocab_size,
        pricing=pricing,
    )
    cu = lengths.cumsum(0).to(torch.int32)
    blocks = DraftBlocks(logits, _argmax(logits), draft_ids, cu, num_draft)
    return DraftBlocks(*moved(blocks, device)), RowLimits(*moved(limits, device))


def _argmax(logits: Tensor) -> Tensor:
    return torch.cat([chunk.argmax(1) for chunk in logits.split(4096)])


def moved(record: tuple[Any, ...], device: torch.device | str) -> tuple[Any, ...]:
    """The fields of a record, its tensors on a device."""
    return tuple(
        x.to(device)
        if isinstance(x, Tensor)
        else ProtectedIds(*moved(x, device))
        if isinstance(x, ProtectedIds)
        else x
        for x in record
    )
