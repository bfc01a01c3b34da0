"""More than one process: settings arrive in every rank, all ranks decide alike, one that fails ends all."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import ROOT, speculation
from vllm_asd.tools.server import VllmServer
from vllm_asd.tools.server.environment import server_environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BUDGET = 3.0


def run_job(folder: Path, target: Path, drafter: Path, job: dict[str, Any], **environment: str) -> Any:
    """Run `tests.e2e.run_parallel` with the engine arguments of a job; what it saw."""
    speculative = speculation("draft_model", 4, drafter, budget=BUDGET, gate=0.5)
    engine = {"model": str(target), "speculative_config": speculative, **job["engine"]}
    job_path = folder / "job.json"
    job_path.write_text(json.dumps({**job, "engine": engine}))
    env = server_environment(dict(os.environ), kv_cache_gib=1, omp_threads=1)
    # The ranks are sent a function.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_PLUGINS": "asd", "PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-m", "tests.e2e.run_parallel", str(job_path)],
        cwd=ROOT,
        env=env | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # vLLM may log on, while it stops its workers.
    lines = [line for line in result.stdout.splitlines() if line.startswith('{"ranks"')]
    assert lines, result.stdout[-3000:] + result.stderr[-3000:]
    return json.loads(lines[0])


def assert_alike(seen: dict[str, Any], ranks: int) -> None:
    """That nothing differed stopped the run already; here, that there was something to differ in."""
    assert seen["ranks"] == ranks
    assert seen["reads_with_entries"] > 5
    assert 0 < seen["most_spent"] <= BUDGET
    reports = [request["asd"] for request in seen["requests"].values()]
    assert len([report for report in reports if report]) == 3
    assert sum(report["exceptions"] for report in reports if report) > 5
    for report in filter(None, reports):
        # A report that came back from each rank would list and count everything twice.
        positions = [entry["position"] for entry in report["exception_trace"]]
        assert positions == sorted(set(positions))
        assert len(positions) == report["exceptions"]
        # What the last step charges behind the length limit stays charged.
        assert 0 < report["regret"] <= report["regret_spent"] <= BUDGET


def test_tensor_parallel_ranks_keep_one_ledger_and_fall_together(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """Ledgers equal to the last bit; and a fault on the rank whose answers nobody reads ends the engine."""
    job = {"engine": {"tensor_parallel_size": 2}, "fault_rank": 1}
    seen = run_job(tmp_path, tiny_llama_dir, tiny_llama_drafter_dir, job)
    assert_alike(seen, ranks=2)
    assert seen["fault"]["error"] == "EngineDeadError"
    # Without the seam's help it takes vLLM five minutes.
    assert seen["fault"]["seconds"] < 60


@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
def test_ray_ranks_keep_one_ledger(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """The Ray executor's workers load the plugin and its settings like any other."""
    job = {"engine": {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}}
    # In this process the engine core, for which Ray is told of two GPUs.
    in_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "RAY_AUTH_MODE": "disabled"}
    seen = run_job(tmp_path, tiny_llama_dir, tiny_llama_drafter_dir, job, **in_process)
    assert_alike(seen, ranks=2)


@pytest.fixture(scope="module")
def two_engines(
    tiny_llama_dir: Path, tiny_llama_drafter_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A server with data parallel 2."""
    speculative = speculation("draft_model", 4, tiny_llama_drafter_dir, budget=BUDGET, gate=0.5)
    args = ["--data-parallel-size", "2", "--speculative-config", json.dumps(speculative)]
    args += [
        "--served-model-name",
        "tiny",
        "--enforce-eager",
        "--max-model-len",
        "256",
        "--max-num-seqs",
        "4",
    ]
    args += ["--dtype", "float32", "--per-request-spec-decode-metrics", "detailed"]
    log_path = tmp_path_factory.mktemp("data-parallel") / "server.log"
    with VllmServer(
        tiny_llama_dir, args, omp_threads=1, environment={"VLLM_PLUGINS": "asd"}, log_path=log_path
    ) as server:
        yield server


def ask(server: VllmServer, prompt: list[int], engine: int, **limits: float) -> dict[str, Any]:
    """One greedy completion by one of the engines."""
    body = {
        "model": "tiny",
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": 60,
        "ignore_eos": True,
        "return_token_ids": True,
        "vllm_xargs": limits,
    }
    request = urllib.request.Request(
        f"{server.base_url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "X-data-parallel-rank": str(engine)},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    asd = answer["metrics"]["speculative_decoding"]["asd"]
    return {"token_ids": answer["choices"][0]["token_ids"], "asd": asd}


def test_data_parallel_engines_decide_alike_and_count_for_themselves(two_engines: VllmServer) -> None:
    """The same requests to both: the same answers and charges, and each engine's counters hold its own."""
    prompts = [[1, 9 + number, 40, 41, 9 + number] for number in range(6)]
    kinds: list[dict[str, float]] = [{}, {}, {}, {"asd_budget": 0.5}, {"asd_budget": 0}, {"asd_gate": 0.05}]

    def ask_for(engine: int) -> list[dict[str, Any]]:
        return [ask(two_engines, prompt, engine, **kind) for prompt, kind in zip(prompts, kinds, strict=True)]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask_for, range(2))
    assert first == second
    exceptions = sum(answer["asd"]["exceptions"] for answer in first)
    assert exceptions > 5
    assert first[4]["asd"]["mode"] == "strict"
    metrics = two_engines.metrics()
    for engine in ("0", "1"):
        assert metrics.total("vllm_asd:enabled", engine=engine) == 1
        assert metrics.total("vllm_asd:exceptions_total", engine=engine) == exceptions
        assert metrics.total("vllm_asd:regret_total", engine=engine) == pytest.approx(
            sum(answer["asd"]["regret"] for answer in first)
        )
