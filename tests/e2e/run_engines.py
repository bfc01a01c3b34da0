"""Run a list of engines one after the other in this process and write down what they said.

    python -m tests.e2e.run_engines JOB.json RESULT.json

A job is a list of `{"engine": {LLM arguments}, "batches": [[{"prompt": ..., "params": {...}}]]}`.
The result holds, per engine, batch and request, token ids, log-probabilities, text and vLLM's speculative
metrics; and per engine what the ledger looked like at the end and how often vLLM preempted.

Whether the plugin is there is up to the environment (`VLLM_PLUGINS`). The engine runs in this very process,
so that one import serves all engines and the ledger can be looked at.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from vllm_asd.upstream import cpu_expand

DEFAULTS: dict[str, Any] = {
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 32,
    "per_request_spec_decode_metrics": "detailed",
    "disable_log_stats": False,
    "seed": 0,
}


def main(job_path: str, result_path: str) -> None:
    """Run the job."""
    results = [_run_engine(job) for job in json.loads(Path(job_path).read_text())]
    Path(result_path).write_text(json.dumps(results))


def _run_engine(job: dict[str, Any]) -> dict[str, Any]:
    llm = LLM(**{**DEFAULTS, **job["engine"]})
    # Without it vLLM's own sampling differs from run to run on a CPU, and there is nothing to compare.
    cpu_expand.mend_if_broken()
    batches = [_run_batch(llm, batch) for batch in job["batches"]]
    core: Any = llm.llm_engine.engine_core
    core = core.engine_core
    # Finished requests are told to the worker with the next step that runs: run one.
    llm.generate(["t9"], SamplingParams(max_tokens=1, temperature=0.9), use_tqdm=False)
    runner = core.model_executor.driver_worker.worker.model_runner
    verifier = getattr(runner, "asd_verifier", None)
    preemptions = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
    result = {
        "batches": batches,
        "ledger_entries": None if verifier is None else len(verifier.ledger),
        "capacity": None if verifier is None else verifier.ledger.capacity,
        "preemptions": preemptions,
    }
    core.shutdown()
    del llm, core, runner, verifier
    cleanup_dist_env_and_memory()
    gc.collect()
    return result


def _run_batch(llm: LLM, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    prompts: Any = [
        request["prompt"] if isinstance(request["prompt"], str) else {"prompt_token_ids": request["prompt"]}
        for request in batch
    ]
    params = [_sampling_params(request["params"]) for request in batch]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [_describe(output) for output in outputs]


def _sampling_params(given: dict[str, Any]) -> SamplingParams:
    from vllm.sampling_params import StructuredOutputsParams

    arguments = dict(given)
    if "structured_outputs" in arguments:
        arguments["structured_outputs"] = StructuredOutputsParams(**arguments["structured_outputs"])
    return SamplingParams(**arguments)


def _describe(output: Any) -> dict[str, Any]:
    completions = [
        {
            "token_ids": list(completion.token_ids),
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "logprobs": None
            if completion.logprobs is None
            else [
                {str(token): entry.logprob for token, entry in position.items()}
                for position in completion.logprobs
            ],
            "metrics": None
            if completion.spec_decode_metrics is None
            else completion.spec_decode_metrics.to_dict(),
        }
        for completion in output.outputs
    ]
    return {"prompt_token_ids": list(output.prompt_token_ids), "completions": completions}


if __name__ == "__main__":
    main(*sys.argv[1:])
