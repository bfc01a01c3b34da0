"""What the way back costs: the same requests with reporting off, on, and at the level "detailed".

One engine in this process decodes the same batch again and again, the three ways in turn (off, on, detailed,
detailed, on, off). All make the same decisions and emit the same tokens, which is checked, so that the ratio
of the wall times is the ratio of the steps. "On" is all that counters and summary reports need: the device's
report, the scheduler's sums, the Prometheus counters. "Detailed" reads the exceptions' logits as well.

A busy machine moves the ratio more than reporting does. The share does not depend on it as much: the time
inside reporting's own functions, each timed where it is called, over the wall time of the same requests.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 python benchmarks/reporting.py --rounds 6

The last line of stdout is the result, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from vllm import LLM, SamplingParams

from vllm_asd import verification
from vllm_asd.telemetry.log_line import IntervalLog
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.telemetry.prometheus import Collectors
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import StepReport
from vllm_asd.tools.models import (
    default_cache_dir,
    prepare_low_precision_copy,
    prepare_smollm2,
    prepare_tiny_llama,
    prepare_tiny_llama_drafter,
)

SCHEMA = "vllm-asd/benchmark-reporting/1"
WAYS = ("off", "on", "detailed")
REPORTING: tuple[tuple[Any, str], ...] = (
    (StepReport, "start"),
    (StepReport, "resolve"),
    (OpenReports, "observe"),
    (OpenReports, "report"),
    (StepCounters, "take"),
    (Collectors, "observe"),
    (IntervalLog, "observe"),
    (verification, "exception_details"),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=("smollm2", "tiny"), default="smollm2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6, help="of off, on, detailed, detailed, on, off")
    arguments = parser.parse_args()
    llm = _engine(arguments.model, arguments.batch)
    _decode(llm, arguments.batch, arguments.tokens)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    inside: dict[str, list[float]] = {way: [] for way in WAYS}
    texts: set[str] = set()
    for _ in range(arguments.rounds):
        for way in (*WAYS, *reversed(WAYS)):
            with _reporting(llm, way), _timed() as clock:
                start = time.perf_counter()
                outputs = _decode(llm, arguments.batch, arguments.tokens)
                seconds[way].append(time.perf_counter() - start)
                inside[way].append(clock[0])
            texts.add(json.dumps([list(output.outputs[0].token_ids) for output in outputs]))
    if len(texts) != 1:
        raise SystemExit("the three ways emitted different tokens: nothing can be compared")
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    result = {
        "schema": SCHEMA,
        "arguments": vars(arguments),
        "seconds": seconds,
        "exceptions": sum(
            metric.value for metric in llm.get_metrics() if metric.name == "vllm_asd:exceptions"
        ),
        "ratio_on": medians["on"] / medians["off"],
        "ratio_detailed": medians["detailed"] / medians["off"],
        "share_on": sum(inside["on"]) / sum(seconds["on"]),
        "share_detailed": sum(inside["detailed"]) / sum(seconds["detailed"]),
    }
    print(json.dumps(result))


def _engine(model: str, batch: int) -> LLM:
    cache = default_cache_dir()
    if model == "tiny":
        target, drafter = prepare_tiny_llama(cache), prepare_tiny_llama_drafter(cache)
    else:
        target = prepare_smollm2(cache)
        drafter = prepare_low_precision_copy(target, cache)
    return LLM(
        model=str(target),
        dtype="float32" if model == "tiny" else "bfloat16",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=batch,
        enable_prefix_caching=False,
        disable_log_stats=False,
        per_request_spec_decode_metrics="detailed",
        speculative_config={
            "method": "draft_model",
            "model": str(drafter),
            "num_speculative_tokens": 5,
            "rejection_sample_method": "asd",
            # Never used up, so that exceptions go on until the end.
            "asd_budget": 1e6,
        },
    )


def _decode(llm: LLM, batch: int, tokens: int) -> list[Any]:
    prompts: Any = [{"prompt_token_ids": list(range(10 + row, 40 + row))} for row in range(batch)]
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    return list(llm.generate(prompts, params, use_tqdm=False))


@contextmanager
def _reporting(llm: LLM, way: str) -> Iterator[None]:
    core: Any = llm.llm_engine.engine_core
    verifier = core.engine_core.model_executor.driver_worker.worker.model_runner.asd_verifier
    with ExitStack() as patches:
        if way != "detailed":
            patches.enter_context(mock.patch.object(verifier, "_num_details", 0))
        if way == "off":
            patches.enter_context(mock.patch.object(StepReport, "start", return_value=None))
        yield


@contextmanager
def _timed() -> Iterator[list[float]]:
    """Add up the seconds spent inside reporting's functions."""
    total = [0.0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                total[0] += time.perf_counter() - start

        return call

    with ExitStack() as patches:
        for owner, name in REPORTING:
            # `start` is a class method, or the stub that stands for reporting off.
            patches.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name))))
        yield total


if __name__ == "__main__":
    main()
