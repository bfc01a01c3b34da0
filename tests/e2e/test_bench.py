"""`vllm-asd bench` from its command line to its report, on the tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from vllm_asd.cli import app; app()", "bench"]


@pytest.mark.e2e
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_report_counts_the_same_work_in_every_arm(
    tiny_llama_dir: Path, tiny_llama_drafter_dir: Path, tmp_path: Path
) -> None:
    """Equal tokens everywhere; ASD alone keeps exceptions, and gets further with them."""
    for needed in ("matplotlib", "pandas"):
        pytest.importorskip(needed)
    data, output = tmp_path / "prompts.jsonl", tmp_path / "out"
    data.write_text("".join(json.dumps({"prompt": f"t{i} t{i + 7} t{i + 31}"}) + "\n" for i in range(10, 14)))
    arguments = ["--model", tiny_llama_dir, "--method", "draft_model", "--drafter", tiny_llama_drafter_dir]
    arguments += ["--draft-tokens", 4, "--data", data, "--output", output, "--concurrency", "2"]
    arguments += ["--repeats", 1, "--requests", 4, "--waves", 1, "--max-tokens", 24, "--no-natural"]
    arguments += ["--no-profile", "--kv-cache-gib", 1, "--", "--enforce-eager", "--max-model-len", 256]
    arguments += ["--dtype", "float32"]  # bf16 takes vLLM's AMX attention, which may crash (docs/install.md)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    run = subprocess.run(
        [*COMMAND, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    report = json.loads((output / "report.json").read_text())
    arms = {**report["arms"]["draft_model"], **report["arms"]["none"]}
    per_cell = {arm: found["2"]["requests"] / found["2"]["cells"] for arm, found in arms.items()}
    assert per_cell == {"strict": 4, "asd": 4, "shadow": 4, "none": 4}
    tokens = {json.loads(path.read_text())["output_tokens"] for path in (output / "cells").glob("*.json")}
    assert tokens == {4 * 24}
    kept = {arm: found["2"]["acceptance"] for arm, found in arms.items()}
    assert kept["none"] is None
    assert kept["asd"]["exceptions"] > 0 == kept["strict"]["exceptions"] == kept["shadow"]["exceptions"]
    assert kept["asd"]["tokens_per_round"] > kept["strict"]["tokens_per_round"]
    assert kept["shadow"]["by_position"] == pytest.approx(kept["strict"]["by_position"], rel=0.05)
    assert {item["arm"] for item in report["prediction"]} == {"strict", "asd"}
    assert (output / "speedup.png").stat().st_size > 0
