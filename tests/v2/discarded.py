"""An engine with asynchronous scheduling whose steps in flight are thrown away, again and again.

    python -m tests.v2.discarded TARGET DRAFTER

Every few steps the prefix cache is reset with ``reset_running_requests=True``: vLLM preempts all requests,
drops the output of the steps in flight and lets the requests come back in the same step. The last line is
JSON, per request: the tokens it got, what its report says, and what the ledger held when it ended.
"""

import json
import sys
from pathlib import Path
from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.platforms.cpu import CpuPlatform

from tests.e2e.engines import speculation

NUM_REQUESTS = 8
MAX_TOKENS = 40


def main(target: str, drafter: str) -> None:
    """Run all requests and print what was found."""
    _allow_async_scheduling()
    config: Any = speculation("draft_model", 4, Path(drafter), budget=6.0, gate=1.5, block_cap=3)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=target,
            dtype="float32",
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=NUM_REQUESTS,
            async_scheduling=True,
            per_request_spec_decode_metrics="detailed",
            disable_log_stats=False,
            speculative_config=config,
        )
    )
    core = engine.engine_core.engine_core
    ledger = core.model_executor.driver_worker.worker.model_runner.asd_verifier.ledger
    for index in range(NUM_REQUESTS):
        prompt = {"prompt_token_ids": [1, 5 + index, 7 * index + 9, 30, 31, 5 + index, 7 * index + 9]}
        engine.add_request(
            str(index), prompt, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
        )
    found: dict[str, dict[str, Any]] = {}
    steps = dropped = 0
    while engine.has_unfinished_requests():
        steps += 1
        for output in engine.step():
            if output.finished:
                completion = output.outputs[0]
                report = completion.spec_decode_metrics.to_dict()["asd"]
                # Its entry is closed with the next schedule.
                spent = max(
                    e.spent for k, e in ledger.snapshot().items() if str(k).startswith(output.request_id)
                )
                found[output.request_id] = {
                    "tokens": len(completion.token_ids),
                    "report": report,
                    "ledger": spent,
                }
        if steps % 4 == 0:
            in_flight = [r for r in core.scheduler.running if r.num_in_flight_tokens > 0]
            dropped += len(in_flight)
            core.scheduler.reset_prefix_cache(reset_running_requests=True)
    print(json.dumps({"answers": found, "dropped": dropped, "async": core.async_scheduling}))


def _allow_async_scheduling() -> None:
    """Undo what vLLM's CPU platform does: it switches it off, and nothing on this path needs a GPU."""
    update = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        update(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


if __name__ == "__main__":
    main(*sys.argv[1:])
