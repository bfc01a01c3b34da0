"""Settings, result files and cells as a run would leave them, without a run."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from vllm_asd.tools.bench.cells import Cell, plan_visits
from vllm_asd.tools.bench.settings import Settings, read_speculations

NGRAM = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}'


def make_settings(**changes: Any) -> Settings:
    """A small run of two concurrencies and two triplets."""
    settings = Settings(
        model="/models/owner/tiny",
        speculations=read_speculations([NGRAM], None, None, 5),
        concurrency=(1, 4),
        repeats=2,
        prompts=2,
        waves=2,
        max_tokens=9,
        data="prompts.jsonl",
        dataset_path=None,
        chat=True,
        natural=True,
        trace=None,
        trace_load=0.7,
        trace_requests=8,
        profile=False,
        server_args=("--enforce-eager",),
        kv_cache_gib=1,
    )
    return dataclasses.replace(settings, **changes)


def bench_serve_result(
    requests: int = 2, tokens: int = 9, chunk_ms: float = 50.0, per_chunk: int = 1
) -> dict[str, Any]:
    """What `vllm bench serve` writes when each chunk takes that long and carries that many tokens."""
    chunks = (tokens - 1) // per_chunk
    ttft, e2e = 0.1, 0.1 + chunks * chunk_ms / 1e3
    latency = {
        "ttft": 1e3 * ttft,
        "tpot": 1e3 * (e2e - ttft) / (tokens - 1),
        "itl": chunk_ms,
        "e2el": 1e3 * e2e,
    }
    figures = {
        f"{stat}_{name}_ms": value
        for name, value in latency.items()
        for stat in ("mean", "p50", "p95", "p99")
    }
    return {
        "duration": requests * e2e,
        "completed": requests,
        "failed": 0,
        "errors": [""] * requests,
        "total_input_tokens": 10 * requests,
        "total_output_tokens": tokens * requests,
        "output_throughput": tokens / e2e,
        "ttfts": [ttft] * requests,
        "latencies": [e2e] * requests,
        "output_lens": [tokens] * requests,
        "generated_texts": ["secret"] * requests,
        **figures,
    }


def make_record(throughput: float = 20.0, drafted: Sequence[float] = (), **changes: Any) -> dict[str, Any]:
    """A cell of two requests with 9 tokens each, one after the other.

    Args:
        throughput: Tokens per second.
        drafted: Accepted tokens by position over 8 rounds; empty without speculation.
        changes: Other fields.
    """
    e2e_ms = 9e3 / throughput
    ttft_ms = e2e_ms / 9
    chunks = 8 / (1 + sum(drafted) / 8)
    latency = {"ttft": ttft_ms, "tpot": ttft_ms, "itl": (e2e_ms - ttft_ms) / chunks, "e2e": e2e_ms}
    counters = {
        "steps": 2 * (chunks + 1),
        "generated": 18.0,
        "preemptions": 0.0,
        "drafts": 8.0 if drafted else 0.0,
        "draft_tokens": 16.0 if drafted else 0.0,
        "accepted": float(sum(drafted)),
        "accepted_at": list(drafted),
        "asd": {"exceptions": 1.0, "regret": 0.5} if drafted else {},
        "stops": {},
    }
    return {
        "duration_s": 2 * e2e_ms / 1e3,
        "completed": 2,
        "output_tokens": 18,
        "output_throughput": throughput,
        "latency_ms": {
            name: dict.fromkeys(("mean", "p50", "p95", "p99"), value) for name, value in latency.items()
        },
        "ttft_ms": [ttft_ms] * 2,
        "tpot_ms": [latency["tpot"]] * 2,
        "e2e_ms": [e2e_ms] * 2,
        "output_lengths": [9, 9],
        "counters": counters,
        "memory_mib": {"resident": 100, "gpu": None},
        "arrivals": None,
        **changes,
    }


def make_cells(settings: Settings, record: Callable[[Cell], dict[str, Any]]) -> dict[Cell, dict[str, Any]]:
    """Every cell of a run."""
    return {cell: record(cell) for visit in plan_visits(settings) for cell in visit.cells}
