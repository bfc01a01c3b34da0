"""What the plain torch kernels promise, which the fast ones must keep."""

import pytest
import torch
from torch import Tensor

from vllm_asd.kernels import DraftScores, pad_rows, row_positions, score_drafts, unpad_rows

INF = float("inf")
NAN = float("nan")


def score(logits: list[float], draft_id: int, argmax: int | None = None) -> tuple[float, bool]:
    """Score one draft token against one row of logits."""
    row = torch.tensor([logits])
    best = row.argmax(-1) if argmax is None else torch.tensor([argmax])
    scores = score_drafts(row, best, torch.tensor([draft_id], dtype=torch.int32))
    return scores.regret.item(), bool(scores.is_match)


@pytest.mark.parametrize(
    ("logits", "draft_id", "expected"),
    [
        ([1.0, 3.0, 2.5], 1, (0.0, True)),
        ([1.0, 3.0, 2.5], 2, (0.5, False)),
        ([3.0, 3.0, 2.5], 1, (0.0, False)),
        ([1.0, 3.0, -INF], 2, (INF, False)),
        ([1.0, NAN, 2.0], 2, (INF, False)),
        ([NAN, 1.0, 2.0], 0, (INF, True)),
        ([INF, INF, 2.0], 1, (INF, False)),
        ([INF, 1.0, 2.0], 1, (INF, False)),
        ([-INF, -INF, -INF], 1, (INF, False)),
        ([3e38, -3e38, 0.0], 1, (INF, False)),
    ],
)
def test_one_row(logits: list[float], draft_id: int, expected: tuple[float, bool]) -> None:
    """Match, gap, tie, masked token, NaN and infinities."""
    assert score(logits, draft_id) == expected


@pytest.mark.parametrize("draft_id", [-1, -7, 3, 2**31 - 1])
@pytest.mark.parametrize("argmax", [0, 2])
def test_ids_outside_the_vocabulary_are_never_accepted(draft_id: int, argmax: int) -> None:
    """Neither as the token that the clamped gather reads (0 and V - 1) nor as an exception."""
    logits = [0.0, 0.0, 0.0]
    assert score(logits, draft_id, argmax) == (INF, False)


@pytest.mark.parametrize("argmax", [-1, 3])
@pytest.mark.parametrize("draft_id", [-1, 0, 2, 3])
def test_an_argmax_outside_the_vocabulary_makes_the_row_unacceptable(argmax: int, draft_id: int) -> None:
    """A kernel may return such an id for a row of NaN; a draft of the same id is not a match."""
    assert score([0.0, 0.0, 0.0], draft_id, argmax) == (INF, False)


def test_an_argmax_that_is_not_the_maximum_is_not_trusted() -> None:
    """The gap would be negative."""
    assert score([1.0, 2.0], 1, argmax=0) == (INF, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_random_rows_agree_with_log_probabilities(dtype: torch.dtype) -> None:
    """The regret is the log-probability gap, float32 and never negative, whatever the logits' width."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(257, 1031, generator=generator).mul(4).to(dtype)
    draft_ids = torch.randint(0, 1031, (257,), generator=generator)
    argmax = logits.argmax(-1)
    draft_ids[::3] = argmax[::3]
    regret, is_match = score_drafts(logits, argmax, draft_ids)
    logprobs = logits.to(torch.float64).log_softmax(-1)
    gap = logprobs.amax(-1) - logprobs.gather(1, draft_ids.unsqueeze(1)).squeeze(1)
    assert regret.dtype == torch.float32
    assert (regret >= 0).all()
    torch.testing.assert_close(regret.double(), gap, rtol=0, atol=1e-5)
    assert torch.equal(is_match, draft_ids == argmax)


def test_the_difference_is_taken_in_float32() -> None:
    """In bfloat16, 256 - 0.5 would be 256."""
    logits = torch.tensor([[256.0, 0.5]], dtype=torch.bfloat16)
    assert score_drafts(logits, torch.tensor([0]), torch.tensor([1])).regret.item() == 255.5


def test_no_drafts() -> None:
    """A step without drafts scores nothing."""
    ids = torch.zeros(0, dtype=torch.int64)
    scores = score_drafts(torch.zeros(0, 5), ids, ids)
    assert scores.regret.shape == scores.is_match.shape == (0,)


def cumulate(lengths: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
    """Inclusive cumulative counts as vLLM passes them."""
    return torch.tensor(lengths, dtype=torch.int64).cumsum(0).to(dtype)


RAGGED = [[], [0], [3], [0, 0], [2, 0, 1], [0, 4, 0], [1, 2, 3, 0], [5, 5], [1] * 9]


@pytest.mark.parametrize("lengths", RAGGED)
@pytest.mark.parametrize("extra_width", [0, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_are_padded_and_recovered(lengths: list[int], extra_width: int, dtype: torch.dtype) -> None:
    """pad_rows agrees with plain slicing, and unpad_rows undoes it."""
    cu, total = cumulate(lengths, dtype), sum(lengths)
    width = max(lengths, default=0) + extra_width
    flat = torch.arange(1.0, total + 1)
    rows, start = [], 0
    for length in lengths:
        rows.append(flat[start : start + length].tolist() + [-9.0] * (width - length))
        start += length
    padded = pad_rows(flat, cu, width, fill=-9.0)
    assert padded.shape == (len(lengths), width)
    assert padded.tolist() == rows
    assert torch.equal(unpad_rows(padded, cu, total), flat)


def test_row_positions_by_hand() -> None:
    """Empty rows are skipped; elements behind the last row get row R."""
    row, position = row_positions(cumulate([2, 0, 1]), 5)
    assert row.tolist() == [0, 0, 2, 3, 3]
    assert position.tolist() == [0, 1, 0, 0, 1]


def test_rows_longer_than_the_width_are_cut_off() -> None:
    """They must not spill into the next row."""
    assert pad_rows(torch.arange(5), cumulate([3, 2]), 2, fill=-1).tolist() == [[0, 1], [3, 4]]


def test_bool_rows_keep_their_dtype() -> None:
    """Match masks are padded with the same function."""
    padded = pad_rows(torch.ones(3, dtype=torch.bool), cumulate([1, 2]), 2, fill=False)
    assert padded.tolist() == [[True, False], [True, True]]


def test_no_wait_for_the_device() -> None:
    """Meta tensors have no values: a .item(), a branch on data or a shape made from data would raise."""
    ids = torch.zeros(6, dtype=torch.int64, device="meta")
    scores = score_drafts(torch.zeros(6, 11, device="meta"), ids, ids)
    assert isinstance(scores, DraftScores)
    cu = torch.zeros(4, dtype=torch.int32, device="meta")
    padded = pad_rows(scores.regret, cu, 3, fill=INF)
    assert padded.shape == (4, 3)
    assert unpad_rows(padded, cu, 6).shape == (6,)
