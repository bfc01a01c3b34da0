"""What the engine tests share: starting `run_engines` in a process of its own, and prompts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_asd.tools.server.environment import server_environment

ROOT = Path(__file__).resolve().parents[2]

PROMPTS = [
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Repeat after me: one two three one two three one two three",
    "Once upon a time there was a small town in the mountains. The town",
    "Question: Tom has 3 apples and buys 5 more. How many apples does he have? Answer:",
    "List of colours: red, green, blue, red, green,",
    "SELECT name, age FROM users WHERE age > 30 AND",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "import numpy as np\n\nx = np.zeros(10)\ny = np.",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at 100 degrees. Ice melts at",
    "Monday, Tuesday, Wednesday,",
    "for i in range(10):\n    print(i)\nfor j in range(",
    "A: Hello! B: Hello! A: How are you? B:",
    "The square root of 16 is 4. The square root of 25 is",
    "In 1969, the first man walked on the",
]


def run(tmp_path: Path, job: list[dict[str, Any]], plugin: bool = True, **environment: str) -> list[Any]:
    """Run a job for :mod:`tests.e2e.run_engines` in a fresh process.

    Args:
        tmp_path: Where the job, the result and the log go.
        job: The engines and their batches.
        plugin: Whether the process may load vllm-asd.
        environment: Further variables.

    Returns:
        The result, one entry per engine.
    """
    name = f"{'with' if plugin else 'without'}-{len(list(tmp_path.iterdir()))}"
    job_path, result_path = tmp_path / f"{name}.job.json", tmp_path / f"{name}.result.json"
    job_path.write_text(json.dumps(job))
    env = server_environment({**os.environ, **environment}, kv_cache_gib=1, omp_threads=2)
    env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    env["VLLM_PLUGINS"] = "asd" if plugin else ""
    log_path = tmp_path / f"{name}.log"
    with log_path.open("w") as log:
        status = subprocess.run(
            [sys.executable, "-m", "tests.e2e.run_engines", str(job_path), str(result_path)],
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if status.returncode != 0:
        pytest.fail("\n".join(log_path.read_text().splitlines()[-40:]))
    return list(json.loads(result_path.read_text()))


def speculation(method: str, num_tokens: int, model: Path | None = None, **asd: Any) -> dict[str, Any]:
    """A speculative configuration; with `asd` keys (without the prefix) it asks for ASD."""
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": num_tokens}
    if method == "ngram":
        config |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    if model is not None:
        config["model"] = str(model)
    if asd:
        config["rejection_sample_method"] = "asd"
        config |= {f"asd_{key}": value for key, value in asd.items()}
    return config


def greedy(max_tokens: int, **more: Any) -> dict[str, Any]:
    """Sampling parameters at temperature 0, without EOS."""
    return {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **more}
