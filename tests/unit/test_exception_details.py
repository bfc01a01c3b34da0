"""Each exception's token and log-probability, against a log-softmax over everything, in bounded memory."""

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_asd.kernels import (
    DraftBlocks,
    MaximaBlocks,
    Outcome,
    RowLimits,
    exception_details_reference,
    verify_drafts_reference,
)
from vllm_asd.kernels.blocks import scan_blocks

VOCAB = 50
CPU = torch.device("cpu")


def lax(num_rows: int, block_cap: int, vocab_size: int = VOCAB) -> RowLimits:
    """Rows that keep whatever the cap allows."""
    return RowLimits.of(
        remaining=torch.full((num_rows,), 1e6, dtype=torch.float64),
        gate=torch.full((num_rows,), 100.0),
        block_cap=torch.full((num_rows,), block_cap),
        shadow=torch.zeros(num_rows, dtype=torch.bool),
        protected_ids=torch.full((num_rows, 1), -1),
        vocab_size=vocab_size,
    )


def decide(counts: list[int], block_cap: int, seed: int) -> tuple[DraftBlocks, Outcome]:
    """Decide random rows, with room for the details of as many exceptions as the cap allows."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(sum(counts), VOCAB, generator=generator)
    top = logits.topk(3).indices
    drafts = top.gather(1, torch.randint(0, 3, (len(top), 1), generator=generator)).squeeze(1)
    cu = torch.tensor(counts).cumsum(0).to(torch.int32)
    blocks = DraftBlocks(logits, logits.argmax(1), drafts, cu, max(counts))
    outcome = Outcome.empty(len(counts), max(counts), min(block_cap, max(counts)), CPU)
    verify_drafts_reference(blocks, lax(len(counts), block_cap), outcome)
    return blocks, outcome


def with_bonus_rows(blocks: DraftBlocks, counts: list[int]) -> MaximaBlocks:
    """The same step as Model Runner V2 lays it out."""
    rows, sampled, flat = [], [], 0
    for count in counts:
        rows += [*range(flat, flat + count), 0]
        sampled += [0, *blocks.draft_ids[flat : flat + count].tolist()]
        flat += count
    logits = blocks.logits[torch.tensor(rows)]
    cu = torch.tensor([0, *(count + 1 for count in counts)]).cumsum(0).to(torch.int32)
    return MaximaBlocks(logits, *scan_blocks(logits), torch.tensor(sampled, dtype=torch.int32), cu)


@pytest.mark.parametrize("block_cap", [1, 2, 9])
@pytest.mark.parametrize("counts", [[3], [4, 0, 2], [1, 5, 5, 2]])
def test_is_what_a_log_softmax_says(counts: list[int], block_cap: int) -> None:
    seen = 0
    for seed in range(20):
        blocks, outcome = decide(counts, block_cap, seed)
        expected = blocks.logits.log_softmax(1)
        exception_details_reference(blocks, outcome)
        details = outcome.details.clone()
        exception_details_reference(with_bonus_rows(blocks, counts), outcome)
        assert torch.equal(details, outcome.details), "V1 and V2 lay their drafts out differently"
        tokens, logprobs = details.chunk(2, dim=1)
        for row, start in enumerate(torch.tensor([0, *counts[:-1]]).cumsum(0).tolist()):
            places = (outcome.exception_regret[row] >= 0).nonzero().flatten().tolist()
            for entry, place in enumerate(places):
                seen += 1
                target = int(outcome.target_ids[row, place])
                assert tokens[row, entry] == blocks.draft_ids[start + place]
                assert logprobs[row, entry] == pytest.approx(float(expected[start + place, target]), abs=1e-5)
            assert not tokens[row, len(places) :].any()
            assert not logprobs[row, len(places) :].any()
    assert seen > 10


class PeakMemory(TorchDispatchMode):
    """Adds up the storages that operations make and that are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._live:
            self._live[key] = storage.nbytes()
            weakref.finalize(storage, self._live.pop, key, None)
            self.peak = max(self.peak, sum(self._live.values()))


def test_memory_does_not_grow_with_the_batch() -> None:
    """1,024 requests, two exceptions each, a vocabulary of 151,936: at most 64 MiB."""
    num_rows, vocab_size = 1024, 151_936
    row = torch.randn(vocab_size, generator=torch.Generator().manual_seed(0))
    best, second = row.topk(2).indices.tolist()
    # All rows are views of one: the logits themselves would take 1.2 GB.
    blocks = DraftBlocks(
        logits=row.expand(2 * num_rows, vocab_size),
        argmax=torch.full((2 * num_rows,), best),
        draft_ids=torch.full((2 * num_rows,), second),
        cu_num_draft=torch.arange(2, 2 * num_rows + 1, 2),
        width=2,
    )
    outcome = Outcome.empty(num_rows, 2, 2, CPU)
    verify_drafts_reference(blocks, lax(num_rows, 2, vocab_size), outcome)
    assert (outcome.exception_regret >= 0).all()
    with PeakMemory() as memory:
        exception_details_reference(blocks, outcome)
    # What logsumexp takes inside itself is not seen: at most as much again.
    assert 2**20 < memory.peak <= 32 * 2**20
    logprob = float(row.log_softmax(0)[best])
    expected = torch.full((num_rows, 2), logprob, dtype=torch.float64)
    torch.testing.assert_close(outcome.details[:, 2:], expected, rtol=0, atol=1e-5)
