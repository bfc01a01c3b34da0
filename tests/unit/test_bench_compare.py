"""What the bench concludes from its cells."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bench_records import bench_serve_result, make_cells, make_record, make_settings
from vllm_asd.tools.bench.acceptance import acceptance
from vllm_asd.tools.bench.cells import ASD, NONE, SHADOW, STRICT, Cell
from vllm_asd.tools.bench.compare import against_plain, against_strict, changes, drift
from vllm_asd.tools.bench.load import read_result
from vllm_asd.tools.bench.markdown import to_markdown
from vllm_asd.tools.bench.prediction import predictions
from vllm_asd.tools.bench.report import build_report
from vllm_asd.tools.bench.results import Results
from vllm_asd.tools.bench.settings import BenchError, Speculation

# Strict slows down from repeat to repeat; ASD is 1.2 times as fast as whatever strict would have been then.
STRICT_SPEED = (40.0, 30.0, 20.0)


def record_of(cell: Cell) -> dict[str, Any]:
    if cell.arm == NONE:
        return make_record(20.0)
    if cell.arm == STRICT:
        return make_record(STRICT_SPEED[cell.repeat], drafted=(6, 4))
    between = (STRICT_SPEED[cell.repeat] + STRICT_SPEED[cell.repeat + 1]) / 2
    return make_record(1.2 * between, drafted=(7, 6)) if cell.arm == ASD else make_record(between, (6, 4))


@pytest.fixture
def results() -> Results:
    return Results(make_cells(make_settings(), record_of))


def test_a_steady_drift_does_not_reach_the_ratio_to_strict(results: Results) -> None:
    ratio = against_strict(results, "ngram", ASD, 4)
    assert ratio is not None
    assert ratio.values == pytest.approx((1.2, 1.2))
    shadow = against_strict(results, "ngram", SHADOW, 4)
    assert shadow is not None
    assert shadow.median == pytest.approx(1)
    assert drift(results)["ngram"]["4"] == pytest.approx(0.5)


def test_half_a_triplet_is_left_out() -> None:
    cells = make_cells(make_settings(), record_of)
    del cells[Cell("ngram", STRICT, 1, "fixed", 2)]
    ratio = against_strict(Results(cells), "ngram", ASD, 1)
    assert ratio is not None
    assert len(ratio.values) == 1


def test_speed_up_is_over_the_plain_servers_median(results: Results) -> None:
    speedup = against_plain(results, "ngram", STRICT, 1)
    assert speedup is not None
    assert speedup.values == pytest.approx((2.0, 1.5, 1.0))


def test_a_change_within_the_controls_own_is_no_verdict(results: Results) -> None:
    """Strict changes by a third from repeat to repeat: a gain of a fifth over it proves nothing."""
    judged = {
        (c.arm, c.against, c.metric): c.verdict
        for c in changes(results)
        if c.concurrency == 1 and c.metric in ("output tokens/s", "peak memory")
    }
    assert judged[ASD, STRICT, "output tokens/s"] == "no clear change"
    assert judged[ASD, "none", "output tokens/s"] == "better"
    assert judged[ASD, "none", "peak memory"] == "no clear change"


def test_a_steady_loss_is_called_worse_in_both_directions() -> None:
    def slower(cell: Cell) -> dict[str, Any]:
        return make_record(
            {NONE: 40.0, STRICT: 30.0}.get(cell.arm, 20.0), drafted=() if cell.arm == NONE else (1, 0)
        )

    judged = {
        (change.arm, change.against, change.metric): change.verdict
        for change in changes(Results(make_cells(make_settings(), slower)))
    }
    assert judged[ASD, STRICT, "output tokens/s"] == "worse"
    assert judged[ASD, STRICT, "TPOT p99"] == "worse"
    assert judged[STRICT, "none", "end to end p95"] == "worse"


def test_rounds_without_a_draft_count_as_rounds() -> None:
    """100 tokens of 2 requests: 20 drafted rounds that accept 10 leave 68 rounds without a draft."""
    record = make_record(drafted=(6, 4))
    record["counters"] |= {"generated": 100.0, "drafts": 20.0}
    found = acceptance([record])
    assert found is not None
    assert found.rounds == 88
    assert found.tokens_per_round == pytest.approx(1 + 10 / 88)
    assert acceptance([make_record()]) is None


def test_the_factors_explain_the_whole_of_the_planners_error(results: Results) -> None:
    found = predictions(results, {"ngram": 0.05})
    assert {(item.arm, item.concurrency) for item in found} == {(a, c) for a in (STRICT, ASD) for c in (1, 4)}
    for item in found:
        product = 1.0
        for factor in item.factors.values():
            product *= factor
        assert item.measured / item.predicted == pytest.approx(product)


def test_the_prediction_does_not_depend_on_how_a_rounds_cost_is_split(results: Results) -> None:
    """Draft cost is taken out of the verification's, so the planner's speed-up at the measured k stays."""
    free, costly = predictions(results, {}), predictions(results, {"ngram": 0.1})
    assert [item.predicted for item in free] == pytest.approx([item.predicted for item in costly])


def test_the_report_says_what_it_must_and_names_no_folder(results: Results, tmp_path: Path) -> None:
    arms = {
        arm: {"steps": 3, "rule_share": 0.004, "mean_ms": dict.fromkeys(PROFILED, 1.0)}
        for arm in (STRICT, ASD)
    }
    profile = {"k": 2, "by_batch": {"1": arms}}
    drafter = Speculation("eagle3", {"method": "eagle3", "model": "../models/head"})
    settings = make_settings(data="../sets/gsm8k/audit.jsonl")
    settings = dataclasses.replace(settings, speculations=(*settings.speculations, drafter))
    report = build_report(settings, results, {"ngram": profile}, ["no fly here."])
    text = to_markdown(report)
    for needed in (
        "## What got worse",
        "## Acceptance",
        "## The planner's prediction",
        "## Drift",
        "## Peak memory",
        "## Answers that end by themselves",
        "0.40%",
        "no fly here.",
        "Model tiny; drafters",
        "`method=eagle3, model=head`",
        "(gsm8k/audit.jsonl)",
        "**The machine changed its speed** by more than 10%",
        "ngram at 4 (x0.50)",
        "1.20",
    ):
        assert needed in text
    assert report["schema"] == "vllm-asd/bench/1"
    assert not re.search(r"\.\./|/models", json.dumps(report) + text)
    pytest.importorskip("matplotlib")
    from vllm_asd.tools.bench.plots import draw_all

    draw_all(report, results, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"speedup.png", "latency.png", "step.png"}


PROFILED = ("step", "inputs", "target forward", "logits", "verification", "the rule", "draft", "rest")


def test_a_result_file_is_kept_without_its_texts(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(bench_serve_result(requests=3, chunk_ms=50, per_chunk=2)))
    found = read_result(path)
    assert "secret" not in json.dumps(found)
    assert found["tpot_ms"] == pytest.approx([25] * 3)
    assert found["latency_ms"]["e2e"]["p99"] == pytest.approx(300)


def test_failed_requests_are_no_result(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**bench_serve_result(), "failed": 1, "errors": ["", "boom\nBad Request"]}))
    with pytest.raises(BenchError, match=r"1 of 3 requests failed: Bad Request"):
        read_result(path)
