"""Each exception's token and log-probability, against a log-softmax over everything."""

import pytest
import torch

from vllm_asd import telemetry
from vllm_asd.kernels import DraftBlocks, Outcome, RowLimits, verify_drafts_reference
from vllm_asd.telemetry.exception_detail import exception_detail
from vllm_asd.telemetry.step_report import StepReport

VOCAB = 50


def decide(counts: list[int], block_cap: int, seed: int) -> tuple[DraftBlocks, Outcome, torch.Tensor]:
    """Decide random rows under lax limits; returns the logits' log-softmax as well."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(sum(counts), VOCAB, generator=generator)
    top = logits.topk(3).indices
    drafts = top.gather(1, torch.randint(0, 3, (len(top), 1), generator=generator)).squeeze(1)
    cu = torch.tensor(counts).cumsum(0).to(torch.int32)
    blocks = DraftBlocks(logits, logits.argmax(1), drafts, cu, max(counts))
    num_rows = len(counts)
    rows = RowLimits(
        remaining=torch.full((num_rows,), 100.0, dtype=torch.float64),
        gate=torch.full((num_rows,), 10.0, dtype=torch.float64),
        block_cap=torch.full((num_rows,), block_cap, dtype=torch.int32),
        shadow=torch.zeros(num_rows, dtype=torch.bool),
        protected_ids=torch.zeros((num_rows, 0), dtype=torch.int64),
        in_scope=None,
        pricing="remaining",
    )
    expected = logits.log_softmax(1)
    return blocks, verify_drafts_reference(blocks, rows), expected


@pytest.fixture(params=["cpu", "device"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to pick rows: those that are exceptions, or as many as there may be."""
    if request.param == "device":
        monkeypatch.setattr(telemetry.exception_detail, "_counts_for_free", lambda _device: False)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("block_cap", [1, 2, 9])
@pytest.mark.parametrize("counts", [[3], [4, 0, 2], [1, 5, 5, 2]])
def test_is_what_a_log_softmax_says(counts: list[int], block_cap: int) -> None:
    seen = 0
    for seed in range(20):
        blocks, outcome, expected = decide(counts, block_cap, seed)
        detail = exception_detail(blocks, outcome, block_cap)
        spent = torch.zeros(len(counts), dtype=torch.float64)
        ids = [str(row) for row in range(len(counts))]
        reports = StepReport.start(ids, outcome, spent, spent.bool(), detail).resolve()
        for row, start in enumerate(torch.tensor([0, *counts[:-1]]).cumsum(0).tolist()):
            for entry in reports[str(row)].exceptions if counts[row] else ():
                seen += 1
                flat = start + entry.position
                assert entry.token_id == blocks.draft_ids[flat]
                assert entry.token_id is not None
                assert entry.target_logprob is not None
                assert entry.target_logprob == pytest.approx(float(expected[flat, entry.target_id]), abs=1e-5)
                kept = float(expected[flat, entry.token_id])
                assert entry.target_logprob - entry.regret == pytest.approx(kept, abs=1e-5)
    assert seen > 10


@pytest.mark.usefixtures("place")
def test_a_step_without_exceptions_reports_none_whatever_its_logits() -> None:
    blocks, outcome, _ = decide([2, 2], 2, seed=0)
    blocks.logits.fill_(torch.nan)
    none = outcome._replace(exception_regret=torch.full_like(outcome.exception_regret, -1.0))
    spent = torch.zeros(2, dtype=torch.float64)
    detail = exception_detail(blocks, none, 2)
    reports = StepReport.start(["a", "b"], none, spent, spent.bool(), detail).resolve()
    assert [report.exceptions for report in reports.values()] == [(), ()]


def test_without_detail_the_exceptions_have_neither() -> None:
    _, outcome, _ = decide([5], 2, seed=3)
    spent = torch.zeros(1, dtype=torch.float64)
    (report,) = StepReport.start(["a"], outcome, spent, spent.bool()).resolve().values()
    assert report.exceptions
    assert {(entry.token_id, entry.target_logprob) for entry in report.exceptions} == {(None, None)}
