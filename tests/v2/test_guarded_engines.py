"""`asd_guard` on Model Runner V2: it trips at the block that completes a loop or a cluster, as on V1."""

import json
from pathlib import Path

import pytest

from eval.frontier.loops import loops
from tests.e2e.engines import speculation
from tests.e2e.guarded_answers import ON, answers, batch, check, engine
from tests.v2.environment import run_module, triton_environment

pytest.importorskip("triton")

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

TOKENS = 90
NUM_PROMPTS = 3


def test_a_looping_answer_turns_strict(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """Its neighbours without a guard say what they say without it."""
    config = speculation("draft_model", 4, tiny_llama_drafter_dir, budget=1000.0, gate=2.0, block_cap=4)
    job = {
        "engine": engine(tiny_llama_dir, config),
        "batches": [batch(NUM_PROMPTS, TOKENS, ON), batch(NUM_PROMPTS, TOKENS, {})],
    }
    job_path, result_path = tmp_path / "job.json", tmp_path / "result.json"
    job_path.write_text(json.dumps([job]))
    arguments = ["tests.e2e.run_engines", str(job_path), str(result_path)]
    log = run_module(arguments, triton_environment(), tmp_path / "engines.log")
    assert "gpu/model_runner.py" in log or "[model_runner.py" in log
    (result,) = json.loads(result_path.read_text())
    tripped = check(answers(result["batches"][0]), answers(result["batches"][1]))
    looped = [loops(case["tokens"][: case["at"]]) for case in tripped]
    assert True in looped
    assert False in looped
    assert sum(case["lost"] for case in tripped) > 3
