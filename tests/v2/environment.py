"""The environment of a process in which Triton interprets, and its commands."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from vllm_asd.tools.server.environment import server_environment

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "tests" / "triton_cpu"


def triton_environment(plugin: bool = True) -> dict[str, str]:
    """Variables that let V2 run on a CPU; `plugin` is whether vLLM may load vllm-asd."""
    path = os.pathsep.join([str(STUB), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return server_environment(os.environ, kv_cache_gib=1, omp_threads=1) | {
        "PYTHONPATH": path.rstrip(os.pathsep),
        "TRITON_INTERPRET": "1",
        # The tests read from the log which runner it was.
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_PLUGINS": "asd,triton_cpu_stub" if plugin else "triton_cpu_stub",
    }


def run_module(arguments: list[str], environment: Mapping[str, str], log_path: Path) -> str:
    """Run `python -m ...` from the repository's root; fail the test with the log's end if that fails."""
    with log_path.open("w") as log:
        status = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=dict(environment),
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    text = log_path.read_text()
    if status.returncode != 0:
        pytest.fail("\n".join(text.splitlines()[-60:]))
    return text
