"""Mixed requests through one engine; its counters, and what their reports add up to.

    python -m tests.v2.recount TARGET DRAFTER METHOD REQUESTS

Greedy, sampled, strict, shadow and tighter requests; with stop strings, streamed, aborted, and preempted for
want of KV cache. The last line of stdout is JSON: `counters` from the engine, `recount` from the reports.
"""

import json
import random
import sys
from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from tests.e2e.engines import speculation
from vllm_asd.upstream import cpu_expand

MODEL_LEN = 160
WISHES: tuple[dict[str, Any], ...] = (
    {},
    {"asd_budget": 0},
    {"asd_mode": "shadow"},
    {"asd_budget": 0.5},
    {"asd_gate": 0.05, "asd_block_cap": 1, "asd_guard": "on"},
)


def main(target: str, drafter: str, method: str, requests: str) -> None:
    """Run all requests and print what was counted."""
    engine = LLMEngine.from_engine_args(_arguments(target, drafter, method))
    # Without it vLLM's own sampling is broken on a CPU.
    cpu_expand.mend_if_broken()
    reports, seen = _serve(engine, int(requests))
    # Ends are counted with the next step that runs.
    _finish(engine, {"prompt_token_ids": [9]}, SamplingParams(max_tokens=1, temperature=0.9))
    counted = [report for report in reports if report["mode"] != "shadow"]
    print(json.dumps({"counters": _counters(engine), "recount": _recount(counted), "seen": seen}))


def _arguments(target: str, drafter: str, method: str) -> EngineArgs:
    model = None if method == "ngram_gpu" else drafter
    config: Any = speculation(method, 4, model, budget=4.0, gate=0.5)  # type: ignore[arg-type]
    if model is None:
        config |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return EngineArgs(
        model=target,
        dtype="float32",
        enforce_eager=True,
        max_model_len=MODEL_LEN,
        # A request needs up to five blocks: when all run, there is room for half of them.
        max_num_seqs=16,
        block_size=32,
        num_gpu_blocks_override=40,
        enable_prefix_caching=False,
        per_request_spec_decode_metrics="detailed",
        disable_log_stats=False,
        speculative_config=config,
    )


def _params(index: int, chance: random.Random) -> SamplingParams:
    """A kind of request that depends on its index, all of them in any 60 in a row."""
    return SamplingParams(
        temperature=0.8 if index % 6 == 5 else 0.0,
        seed=index,
        max_tokens=chance.randrange(4, 80),
        ignore_eos=index % 2 == 0,
        # Ends at a word that begins with it: one in fifty does.
        stop=["t33"] if index % 4 == 0 else None,
        extra_args=WISHES[index % 5],
        # With so few words the guarded ones loop.
        allowed_token_ids=list(range(20, 24)) if index % 5 == 4 else None,
        output_kind=RequestOutputKind.DELTA if index % 3 == 0 else RequestOutputKind.CUMULATIVE,
    )


def _serve(engine: LLMEngine, num_requests: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """All reports, those of aborted requests as the scheduler had them, and how many ended how."""
    chance = random.Random(3)
    scheduler = engine.engine_core.engine_core.scheduler
    for index in range(num_requests):
        prompt = [chance.randrange(5, 512) for _ in range(chance.randrange(4, 60))]
        engine.add_request(str(index), {"prompt_token_ids": prompt}, _params(index, chance))
    reports: list[dict[str, Any]] = []
    seen = {"finished": 0, "stop": 0, "length": 0, "aborted": 0, "sampled": 0, "shadow": 0, "cut": 0}
    internal: dict[str, str] = {}
    while engine.has_unfinished_requests():
        internal |= {request_id.partition("-")[0]: request_id for request_id in scheduler.requests}
        finished = [output for output in engine.step() if output.finished]
        for output in finished:
            completion = output.outputs[0]
            seen["finished"] += 1
            seen[completion.finish_reason] += 1
            report = completion.spec_decode_metrics.to_dict().get("asd")
            if isinstance(completion.stop_reason, str):
                # The front end cut this report at the stop string; the counters have the engine core's.
                report = scheduler.asd_core.reports.report(internal[output.request_id])
                seen["cut"] += 1
            seen["sampled"] += report is None
            if report is not None:
                seen["shadow"] += report["mode"] == "shadow"
                reports.append(report)
        running = [request for request in scheduler.running if request.num_output_tokens > 3]
        if running and chance.random() < 0.06:
            gone = chance.choice(running)
            report = scheduler.asd_core.reports.report(gone.request_id)
            if report is not None:
                reports.append(report)
            engine.abort_request([gone.request_id], internal=True)
            seen["aborted"] += 1
    return reports, seen


def _finish(engine: LLMEngine, prompt: Any, params: SamplingParams) -> None:
    engine.add_request("last", prompt, params)
    while engine.has_unfinished_requests():
        engine.step()


def _counters(engine: LLMEngine) -> dict[str, float]:
    """Sums of the engine's metrics by name; blocks by their stop, the histogram by its count and sum."""
    found: dict[str, float] = {}
    for metric in engine.get_metrics():
        if metric.name == "vllm_asd:request_regret":
            found |= {"request_regret_count": metric.count, "request_regret_sum": metric.sum}
        elif metric.name == "vllm_asd:blocks":
            found[f"blocks_{metric.labels['stop']}"] = metric.value
        elif metric.name.startswith("vllm_asd:") or metric.name == "vllm:num_preemptions":
            found[metric.name.partition(":")[2]] = metric.value
    return found


def _recount(reports: list[dict[str, Any]]) -> dict[str, float]:
    """What the counters should be: exceptions and regret from the traces, the rest from the sums."""
    traces = [entry for report in reports for entry in report["exception_trace"]]
    charged = [report for report in reports if report["mode"] != "strict"]
    sums = {
        key: sum(report[key] for report in reports)
        for key in ("accepted_tokens", "strict_accepted_tokens", "reused_tokens")
    }
    stops = {
        f"blocks_{stop}": sum(report["blocks_by_stop"][stop] for report in reports)
        for stop in reports[0]["blocks_by_stop"]
    }
    return {
        **sums,
        **stops,
        "exceptions": len(traces),
        "regret": sum(entry["regret"] for entry in traces),
        "exhausted_requests": sum(report["exhausted_at_token"] is not None for report in reports),
        "guarded_requests": sum(report["guarded_at_token"] is not None for report in reports),
        "request_regret_count": len(charged),
        "request_regret_sum": sum(report["regret"] for report in charged),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
