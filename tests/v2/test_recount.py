"""On Model Runner V2 too the engine's counters are what its per-request reports add up to."""

import json
import os
from pathlib import Path

import pytest

from tests.v2.environment import run_module, triton_environment

pytest.importorskip("triton")

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

NUM_REQUESTS = 200 if os.environ.get("VLLM_ASD_FULL") else 40


def test_counters_equal_a_recount_from_the_reports(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """Over sampled, strict, shadow, stopped, streamed, aborted and preempted requests."""
    arguments = ["tests.v2.recount", str(tiny_llama_dir), str(tiny_llama_drafter_dir), "draft_model"]
    log = run_module([*arguments, str(NUM_REQUESTS)], triton_environment(), tmp_path / "recount.log")
    assert "Using V2 Model Runner" in log
    result = json.loads(next(line for line in log.splitlines() if line.startswith('{"counters"')))
    counters, recount, seen = result["counters"], result["recount"], result["seen"]
    for name, value in recount.items():
        assert counters[name] == pytest.approx(value, abs=1e-9), name
    seldom = ("exceptions", "exhausted_requests", "guarded_requests", "strict_accepted_tokens")
    assert min(recount[name] for name in seldom) > 0
    assert counters["num_preemptions"] > 0
    assert min(seen.values()) > 0, seen
    assert seen["finished"] + seen["aborted"] == NUM_REQUESTS


def test_what_vllm_throws_away_is_not_charged(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """Asynchronous scheduling, steps in flight dropped again and again: paid is what the answers hold."""
    arguments = ["tests.v2.discarded", str(tiny_llama_dir), str(tiny_llama_drafter_dir)]
    log = run_module(arguments, triton_environment(), tmp_path / "discarded.log")
    assert "Using V2 Model Runner" in log
    result = json.loads(next(line for line in log.splitlines() if line.startswith('{"answers"')))
    assert result["async"]
    assert result["dropped"] > 10, "no step was in flight"
    answers = result["answers"].values()
    assert len(answers) == 8
    for answer in answers:
        report = answer["report"]
        assert report["regret_spent"] == pytest.approx(report["regret"], abs=1e-12)
        assert report["regret_spent"] <= answer["ledger"] <= report["budget"]
        # All but what the step in flight at the answer's end may have paid, of three exceptions at most.
        assert answer["ledger"] - report["regret_spent"] <= 3 * 1.5 * 4
    assert sum(answer["report"]["exceptions"] for answer in answers) > 10
