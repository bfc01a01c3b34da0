"""Tensor parallel 2 with ASD: after every step both ranks' ledgers are read and compared.

    python -m tests.e2e.run_parallel TARGET DRAFTER

One line of stdout is JSON with what was seen.
"""

import json
import sys
from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams


def read_ledger(worker: Any) -> dict[str, float]:
    """Run in each rank: what each request has spent."""
    ledger = worker.model_runner.asd_verifier.ledger
    return {request_id: entry.spent for request_id, entry in ledger.snapshot().items()}


def main(target: str, drafter: str) -> None:
    """Serve a few requests."""
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=target,
            dtype="float32",
            tensor_parallel_size=2,
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=4,
            per_request_spec_decode_metrics="detailed",
            speculative_config={
                "method": "draft_model",
                "model": drafter,
                "num_speculative_tokens": 4,
                "rejection_sample_method": "asd",
                "asd_budget": 3.0,
                "asd_gate": 0.5,
            },
        )
    )
    for number, temperature in enumerate((0.0, 0.0, 0.8, 0.0)):
        params = SamplingParams(temperature=temperature, max_tokens=40, ignore_eos=True, seed=number)
        engine.add_request(f"r{number}", {"prompt_token_ids": [1, 9 + number, 40, 41, 9 + number]}, params)
    seen: dict[str, Any] = {"ranks": 0, "steps": 0, "steps_with_entries": 0, "most_spent": 0.0, "reports": []}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                metrics: Any = output.outputs[0].spec_decode_metrics
                seen["reports"].append(metrics.to_dict().get("asd"))
        ledgers = engine.collective_rpc(read_ledger)
        assert all(ledger == ledgers[0] for ledger in ledgers), ledgers
        seen["ranks"] = len(ledgers)
        seen["steps"] += 1
        seen["steps_with_entries"] += bool(ledgers[0])
        seen["most_spent"] = max(seen["most_spent"], *ledgers[0].values(), 0.0)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
