"""Hundreds of requests through a KV cache that is too small, with aborts and reused ids.

    python -m tests.e2e.soak TARGET DRAFTER [REQUESTS]

After every step the whole ledger is read back and held against each request's own budget. The last line of
stdout is JSON with what was seen; a broken bound ends the process with a traceback.
"""

import json
import random
import sys
from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams

IN_FLIGHT = 40
BUDGETS = (0.0, 0.25, 1.0, 3.0, 8.0)


def main(target: str, drafter: str, requests: str = "500") -> None:
    """Run the soak."""
    num_requests = int(requests)
    num_reused = num_requests * 3 // 25
    in_flight = min(IN_FLIGHT, num_requests // 3)
    engine = LLMEngine.from_engine_args(_arguments(target, drafter))
    core: Any = engine.engine_core
    scheduler = core.engine_core.scheduler
    verifier = core.engine_core.model_executor.driver_worker.worker.model_runner.asd_verifier
    initial_capacity = verifier.ledger.capacity

    chance = random.Random(7)
    budgets: dict[str, float] = {}
    seen = {"finished": 0, "aborted": 0, "steps": 0, "charged": 0, "exhausted": 0, "reused_ids": 0}
    peak_entries = added = 0
    while added < num_requests or engine.has_unfinished_requests():
        while added < num_requests and len(budgets) < in_flight:
            # A freed id comes back for another request, with another budget.
            request_id = f"request-{added % num_reused}"
            if request_id in budgets:
                request_id = f"fresh-{added}"
            seen["reused_ids"] += added >= num_reused and request_id.startswith("request-")
            budgets[request_id] = chance.choice(BUDGETS)
            params = _params(chance, budgets[request_id])
            engine.add_request(request_id, _prompt(chance), params, priority=chance.randrange(9))
            added += 1
        for output in engine.step():
            if output.finished:
                report = output.outputs[0].spec_decode_metrics.to_dict().get("asd")
                _check_report(report, budgets.pop(output.request_id), seen)
                seen["finished"] += 1
        entries = verifier.ledger.snapshot()
        peak_entries = max(peak_entries, len(entries))
        for request_id, entry in entries.items():
            assert 0.0 <= entry.spent <= entry.limits.budget, (request_id, entry)
        if budgets and chance.random() < 0.05:
            gone = chance.choice(sorted(budgets))
            engine.abort_request([gone])
            del budgets[gone]
            seen["aborted"] += 1
        seen["steps"] += 1

    # Ends are told to the worker with the next step that runs.
    engine.add_request("last", _prompt(chance), SamplingParams(max_tokens=2, temperature=0.9))
    while engine.has_unfinished_requests():
        engine.step()
    seen["left_in_ledger"] = len(verifier.ledger)
    seen["left_in_scheduler"] = len(scheduler.requests)
    seen["peak_entries"] = peak_entries
    seen["grew"] = verifier.ledger.capacity > initial_capacity
    seen["preemptions"] = int(
        sum(metric.value for metric in _metrics() if metric.name == "vllm:num_preemptions")
    )
    print(json.dumps(seen))


def _arguments(target: str, drafter: str) -> EngineArgs:
    return EngineArgs(
        model=target,
        enforce_eager=True,
        max_model_len=256,
        # New requests of a higher priority run while preempted ones keep their entries: more entries than
        # sequences.
        scheduling_policy="priority",
        max_num_seqs=6,
        num_gpu_blocks_override=14,
        block_size=32,
        max_num_batched_tokens=256,
        per_request_spec_decode_metrics="detailed",
        disable_log_stats=False,
        speculative_config={
            "method": "draft_model",
            "model": drafter,
            "num_speculative_tokens": 5,
            "rejection_sample_method": "asd",
            "asd_budget": max(BUDGETS),
            "asd_gate": 0.5,
            "asd_block_cap": 3,
        },
    )


def _prompt(chance: random.Random) -> Any:
    return {"prompt_token_ids": [chance.randrange(5, 512) for _ in range(chance.randrange(4, 60))]}


def _params(chance: random.Random, budget: float) -> SamplingParams:
    return SamplingParams(
        temperature=chance.choice((0.0, 0.0, 0.0, 0.8)),
        max_tokens=chance.randrange(4, 90),
        ignore_eos=True,
        extra_args={"asd_budget": budget},
    )


def _check_report(report: dict[str, Any] | None, budget: float, seen: dict[str, int]) -> None:
    if report is None:  # a sampled request
        return
    assert report["regret_spent"] <= budget == report["budget"], report
    assert report["regret"] <= report["regret_spent"] + 1e-9, report
    assert budget > 0 or report["exceptions"] == 0, report
    seen["charged"] += report["regret_spent"] > 0
    seen["exhausted"] += report["exhausted_at_token"] is not None


def _metrics() -> Any:
    from vllm.v1.metrics.reader import get_metrics_snapshot

    return get_metrics_snapshot()


if __name__ == "__main__":
    main(*sys.argv[1:])
