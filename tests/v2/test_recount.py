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
