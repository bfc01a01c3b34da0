"""The ledger through preemptions, aborts and reused ids, in a real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.engines import ROOT
from vllm_asd.tools.server.environment import server_environment

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(600)
def test_soak(tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> None:
    """No request ever spends more than its budget, and nothing is left of any of them."""
    env = server_environment(dict(os.environ), kv_cache_gib=1, omp_threads=2)
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "asd"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.e2e.soak", str(tiny_llama_dir), str(tiny_llama_drafter_dir)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    print(seen)
    assert seen["left_in_ledger"] == 0
    assert seen["left_in_scheduler"] == 0
    # The load did what it was meant to do.
    assert seen["preemptions"] > 20
    assert seen["aborted"] > 10
    assert seen["reused_ids"] > 100
    assert seen["charged"] > 100
    # max_num_seqs. Whether preempted requests come on top depends on the texts, and so on the CPU; that the
    # ledger grows is for the property tests to show.
    assert seen["peak_entries"] >= 6
