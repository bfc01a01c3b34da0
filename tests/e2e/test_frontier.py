"""The comparison of rules on a real engine: small, but through every part of it that touches vLLM."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from eval.frontier.arms import STRICT
from eval.frontier.runs import Run, read_runs
from tests.e2e.engines import ROOT
from vllm_asd.tools.models import default_cache_dir, prepare_tiny_llama, prepare_tiny_llama_drafter

pytestmark = pytest.mark.e2e

TOKENS = 40


def test_arms_run_side_by_side_and_add_to_what_is_there(tmp_path: Path) -> None:
    """Each answer is the control's up to its first exception; what was answered before is not asked again."""
    pytest.importorskip("vllm")
    pytest.importorskip("matplotlib")
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out"
    rows = [{"id": str(i), "prompt": f"t{20 + i} t{40 + i} t{60 + 2 * i}"} for i in range(4)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output.mkdir()
    earlier = Run("words", "2", "paper-g0.5", [7] * 10, [1, 9], 8, 1, [0], [(1, 0.5)], "length")
    (output / "runs.jsonl").write_text(json.dumps(asdict(earlier)) + "\n")
    models = default_cache_dir()
    command = [
        sys.executable,
        "-m",
        "eval.frontier",
        "run",
        "--data",
        f"words={prompts}",
        "--output",
        str(output),
    ]
    command += ["--target", str(prepare_tiny_llama(models)), "--method", "draft_model"]
    command += ["--drafter", str(prepare_tiny_llama_drafter(models, 0.05)), "--max-tokens", str(TOKENS)]
    command += ["--arms", "paper-g0.5,lookahead-g0.6,ratio-r0.25", "--batch", "6"]
    environment = {**os.environ, "VLLM_PLUGINS": "asd"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]

    runs = {(run.id, run.arm): run for run in read_runs(output / "runs.jsonl")}
    assert len(runs) == 16
    assert runs.pop(("2", "paper-g0.5")) == earlier
    for run in runs.values():
        control = runs[run.id, STRICT]
        assert len(run.emitted) == run.rounds + 1
        assert sum(run.emitted) == run.tokens
        if run is control:
            assert (run.strict, run.exceptions) == (None, [])
            rounds, accepted, strict, *_ = run.replay["paper-g0.25"]
            assert strict <= accepted
            # Steps without a relaxed request are vLLM's alone.
            assert 0 < rounds <= run.rounds
            assert strict <= run.accepted
            continue
        assert run.strict is not None
        assert len(run.strict) == run.rounds
        assert sum(run.strict) <= run.accepted
        first = run.exceptions[0][0] if run.exceptions else run.tokens
        assert run.token_ids[:first] == control.token_ids[:first]
        assert run.token_ids[first : first + 1] != control.token_ids[first : first + 1] or not run.exceptions
        assert all(a < b for (a, _), (b, _) in pairwise(run.exceptions))
    assert sum(len(run.exceptions) for run in runs.values()) > 10
    summary = json.loads((output / "summary.json").read_text())
    assert summary["prompts"] == {"words": 4}
    assert summary["settings"]["max_tokens"] == TOKENS
