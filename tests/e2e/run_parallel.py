"""Several ranks with ASD: while requests run, all ranks' ledgers are read and compared; then one rank fails.

    python -m tests.e2e.run_parallel JOB.json

A job is `{"engine": {EngineArgs}, "fault_rank": 1}`; without `fault_rank` no rank fails. One line of stdout
is JSON with what was seen.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams

DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "per_request_spec_decode_metrics": "detailed",
}
NUM_TOKENS = 100


def name_ray_device() -> None:
    """Let vLLM's CPU platform, which names no Ray device, say "GPU": to Ray a number to count down."""
    from vllm.platforms import current_platform

    type(current_platform).ray_device_key = "GPU"


def start_ray(num_ranks: int) -> None:
    """Start Ray with as many GPUs as there are ranks, which nobody will use."""
    import ray  # type: ignore[import-not-found]

    name_ray_device()
    ray.init(
        num_cpus=num_ranks,
        num_gpus=num_ranks,
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": name_ray_device},
    )


def read_ledger(worker: Any) -> dict[str, float] | None:
    """Run in each rank: what each request has spent; None on a rank that does not sample."""
    verifier = getattr(worker.model_runner, "asd_verifier", None)
    if verifier is None:
        return None
    return {request_id: entry.spent for request_id, entry in verifier.ledger.snapshot().items()}


def fail_on(worker: Any, rank: int) -> None:
    """Run in each rank: let the next decision fail on one of them."""

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("this rank's decision fails")

    if worker.rank == rank:
        worker.model_runner.asd_verifier.relax = fail


def add_requests(engine: LLMEngine) -> None:
    """Three greedy requests and a sampled one."""
    for number, temperature in enumerate((0.0, 0.0, 0.8, 0.0)):
        params = SamplingParams(temperature=temperature, max_tokens=NUM_TOKENS, ignore_eos=True, seed=number)
        engine.add_request(f"r{number}", {"prompt_token_ids": [1, 9 + number, 40, 41, 9 + number]}, params)


def serve(engine: LLMEngine) -> dict[str, Any]:
    """Run the requests to their end; stop at the first difference between ranks."""
    seen: dict[str, Any] = {"ranks": 0, "reads_with_entries": 0, "most_spent": 0.0, "requests": {}}
    add_requests(engine)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                metrics: Any = output.outputs[0].spec_decode_metrics
                answer = {"token_ids": list(output.outputs[0].token_ids), "asd": metrics.to_dict().get("asd")}
                assert seen["requests"].setdefault(output.request_id, answer) is answer
        ledgers = [ledger for ledger in engine.collective_rpc(read_ledger) if ledger is not None]
        assert all(ledger == ledgers[0] for ledger in ledgers), ledgers
        seen["ranks"] = len(ledgers)
        seen["reads_with_entries"] += bool(ledgers[0])
        seen["most_spent"] = max(seen["most_spent"], *ledgers[0].values(), 0.0)
    return seen


def fail(engine: LLMEngine, rank: int) -> dict[str, Any]:
    """Let one rank fail in the middle of requests; say how the engine ended, and after how long."""
    add_requests(engine)
    engine.step()
    engine.collective_rpc(fail_on, args=(rank,))
    start = time.monotonic()
    error = ""
    try:
        while engine.has_unfinished_requests():
            engine.step()
    except Exception as raised:  # noqa: BLE001
        error = type(raised).__name__
    return {"error": error, "seconds": time.monotonic() - start}


def main(job_path: str) -> None:
    """Run the job."""
    job = json.loads(Path(job_path).read_text())
    if job["engine"].get("distributed_executor_backend") == "ray":
        start_ray(job["engine"]["tensor_parallel_size"])
    engine = LLMEngine.from_engine_args(EngineArgs(**DEFAULTS | job["engine"]))
    seen = serve(engine)
    if "fault_rank" in job:
        seen["fault"] = fail(engine, job["fault_rank"])
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
