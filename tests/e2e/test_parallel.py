"""More than one process: settings arrive in every rank, and all ranks decide alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eval.server.environment import server_environment
from tests.e2e.engines import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_tensor_parallel_ranks_keep_the_same_ledger(
    tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """Equal to the last bit after every step, with exceptions charged on both."""
    env = server_environment(dict(os.environ), kv_cache_gib=1, omp_threads=1)
    # In this process the engine core; the ranks are processes of their own, and are sent a function.
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    env |= {"VLLM_PLUGINS": "asd", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-m", "tests.e2e.run_parallel", str(tiny_llama_dir), str(tiny_llama_drafter_dir)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    # vLLM may log on, while it stops its workers.
    seen = json.loads(next(line for line in result.stdout.splitlines() if line.startswith('{"ranks"')))
    assert seen["ranks"] == 2
    assert seen["steps_with_entries"] > 5
    assert 0 < seen["most_spent"] <= 3.0
    assert sum(report["exceptions"] for report in seen["reports"] if report) > 0
