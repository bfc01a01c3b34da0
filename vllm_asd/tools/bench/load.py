"""One cell's load, as arguments of `vllm bench serve`, and what its result comes to."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vllm_asd.tools.bench.cells import EXTRA_BODY, Cell
from vllm_asd.tools.bench.settings import SERVED_NAME, BenchError, Settings
from vllm_asd.tools.bench.workload import Arrivals

PERCENTILES = (50, 95, 99)
_LATENCIES = ("ttft", "tpot", "itl", "e2el")


def bench_arguments(
    cell: Cell,
    settings: Settings,
    base_url: str,
    prompts: Path,
    result: Path,
    arrivals: Arrivals | None = None,
    warm_up_tokens: int | None = None,
) -> list[str]:
    """The arguments for one cell.

    Args:
        cell: What to measure.
        settings: Of the run.
        base_url: Of the server.
        prompts: What :func:`.workload.write_prompts` wrote; not read for vLLM's own data sets.
        result: Where the result file goes.
        arrivals: For a trace.
        warm_up_tokens: Instead of a measurement: one request per user, that long.
    """
    requests = settings.requests_at(cell.concurrency)
    if arrivals is not None:
        requests = len(arrivals.output_tokens)
    if warm_up_tokens is not None:
        requests = cell.concurrency
    body = EXTRA_BODY[cell.arm]
    return [
        *("--backend", "openai", "--endpoint", "/v1/completions", "--base-url", base_url),
        *("--model", settings.model, "--served-model-name", SERVED_NAME, "--temperature", "0"),
        *_data_arguments(settings, prompts, warm_up_tokens or settings.max_tokens, arrivals is not None),
        *("--num-prompts", str(requests), "--seed", "0"),
        *_arrival_arguments(cell, arrivals),
        *(("--extra-body", json.dumps(body)) if body else ()),
        *(() if cell.work == "natural" else ("--ignore-eos",)),
        *("--disable-tqdm", "--save-result", "--save-detailed"),
        *("--percentile-metrics", ",".join(_LATENCIES)),
        *("--metric-percentiles", ",".join(map(str, PERCENTILES))),
        *("--result-dir", str(result.parent), "--result-filename", result.name),
    ]


def _data_arguments(settings: Settings, prompts: Path, tokens: int, by_row: bool) -> list[str]:
    if settings.data.endswith(".jsonl"):
        own = ["--dataset-name", "custom", "--dataset-path", str(prompts), "--disable-shuffle"]
        own += ["--custom-output-len", "-1" if by_row else str(tokens)]
        return own if settings.chat else [*own, "--skip-chat-template"]
    path = ["--dataset-path", settings.dataset_path] if settings.dataset_path else []
    return ["--dataset-name", settings.data, *path, "--output-len", str(tokens)]


def _arrival_arguments(cell: Cell, arrivals: Arrivals | None) -> list[str]:
    if arrivals is None:
        return ["--max-concurrency", str(cell.concurrency)]
    return ["--request-rate", f"{arrivals.rate:.6g}", "--burstiness", f"{arrivals.burstiness:.6g}"]


def read_result(path: Path) -> dict[str, Any]:
    """Keep of a result file what the comparison needs; prompts and answers are dropped.

    Returns:
        `duration_s`, `completed`, `input_tokens`, `output_tokens`, `output_throughput` (tokens per second),
        `latency_ms` (TTFT, TPOT, ITL, end to end: mean and percentiles), and per request `ttft_ms`,
        `tpot_ms`, `e2e_ms`, `output_lengths`.

    Raises:
        BenchError: A request failed.
    """
    found = json.loads(path.read_text())
    if found["failed"]:
        reasons = [error for error in found["errors"] if error]
        reason = reasons[0].strip().splitlines()[-1] if reasons else "no reason given"
        raise BenchError(
            f"{found['failed']} of {found['failed'] + found['completed']} requests failed: {reason}"
        )
    ttft, e2e = np.array(found["ttfts"]) * 1e3, np.array(found["latencies"]) * 1e3
    lengths = np.array(found["output_lens"])
    tpot = (e2e - ttft) / np.maximum(lengths - 1, 1)
    return {
        "duration_s": found["duration"],
        "completed": found["completed"],
        "input_tokens": found["total_input_tokens"],
        "output_tokens": found["total_output_tokens"],
        "output_throughput": found["output_throughput"],
        "latency_ms": {name.replace("e2el", "e2e"): _spread(found, name) for name in _LATENCIES},
        "ttft_ms": _rounded(ttft),
        "tpot_ms": _rounded(tpot),
        "e2e_ms": _rounded(e2e),
        "output_lengths": lengths.tolist(),
    }


def _spread(found: dict[str, Any], name: str) -> dict[str, float]:
    percentiles = {f"p{p}": found[f"p{p}_{name}_ms"] for p in PERCENTILES}
    return {"mean": found[f"mean_{name}_ms"], **percentiles}


def _rounded(values: "Sequence[float] | np.ndarray[Any, Any]") -> list[float]:
    return [round(float(value), 3) for value in values]
