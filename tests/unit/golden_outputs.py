"""What users read, written down: reports, /metrics, counters, the log line, and each refusal of a request.

After a wanted change: python -m tests.unit.golden_outputs (rewrites tests/unit/golden), and read the diff.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest

from tests.property.step_blocks import make_blocks
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.policy import StopReason
from vllm_asd.serving.counters import counters_by_engine
from vllm_asd.telemetry.log_line import IntervalLog
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.telemetry.prometheus import Collectors
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import StepBlocks

FOLDER = Path(__file__).parent / "golden"

LIMITS = {
    "enforced": RequestLimits(8.0, 0.25, 2, 0.01),
    "shadow": RequestLimits(8.0, 0.25, 2, shadow=True),
    "strict": RequestLimits(0.0, 0.25, 2),
    "phases": RequestLimits(2.0, 0.5, 1, answer=RequestLimits(4.0, 0.25, 2)),
    "guarded": RequestLimits(8.0, 0.25, 2, guard=True),
    "sampled": RequestLimits(8.0, 0.25, 2),
    "idle": RequestLimits(8.0, 0.25, 2),
}
SERVER = AsdConfig(asd_mode="shadow", asd_guard="on")
PHASED_SERVER = AsdConfig(asd_scope="phases", asd_budget=2.0, asd_answer_budget=4.0)
LONG = "a value that is much too long to be repeated in one line"
REFUSED: tuple[tuple[AsdConfig, dict[str, Any]], ...] = (
    (AsdConfig(), {"asd_bugdet": 1.0}),
    (AsdConfig(), {"asd_pricing": "remaining"}),
    (AsdConfig(), {"asd_scope": "phases"}),
    (AsdConfig(), {"asd_protect": "none"}),
    (AsdConfig(), {"asd_budget": 9.0}),
    (AsdConfig(), {"asd_budget": -1.0}),
    (AsdConfig(), {"asd_budget": "2"}),
    (AsdConfig(), {"asd_budget": True}),
    (AsdConfig(), {"asd_budget": math.nan}),
    (AsdConfig(), {"asd_budget": math.inf}),
    (AsdConfig(), {"asd_budget": None}),
    (AsdConfig(), {"asd_gate": 0.5}),
    (AsdConfig(), {"asd_gate": [0.1]}),
    (AsdConfig(), {"asd_refill": 0.1}),
    (AsdConfig(), {"asd_refill": LONG}),
    (AsdConfig(), {"asd_block_cap": 3}),
    (AsdConfig(), {"asd_block_cap": 1.5}),
    (AsdConfig(), {"asd_block_cap": 129}),
    (AsdConfig(), {"asd_mode": "strict"}),
    (SERVER, {"asd_mode": "enforce"}),
    (SERVER, {"asd_guard": "off"}),
    (AsdConfig(), {"asd_guard": True}),
    (AsdConfig(), {"asd_sampling": "gumbel"}),
    (AsdConfig(), {"asd_sampling": "typical"}),
    *((AsdConfig(), {f"asd_answer_{limit}": 0}) for limit in ("budget", "gate", "block_cap", "refill")),
    (PHASED_SERVER, {"asd_answer_budget": 5.0}),
    (PHASED_SERVER, {"asd_answer_gate": -0.1}),
    (PHASED_SERVER, {"asd_answer_block_cap": 3}),
    (PHASED_SERVER, {"asd_answer_refill": "0"}),
    (PHASED_SERVER, {"asd_budget": 3.0}),
)


def render() -> dict[str, str]:
    """Each file's text by its name."""
    summary, counts = _serve(detailed=False)
    detailed, _ = _serve(detailed=True)
    registry, log = CollectorRegistry(), IntervalLog()
    collectors = Collectors(registry)
    for engine in (0, 1):
        collectors.enable("model", engine)
    for step in counts:
        collectors.observe(step, "model", 1)
        log.observe(step)
    return {
        "report_summary.json": _json(summary),
        "report_detailed.json": _json(detailed),
        "step_counters.json": _json(counts),
        "metrics.txt": _without_time(generate_latest(registry).decode()),
        "counters.json": _json(counters_by_engine(registry)),
        "log_line.txt": f"{log.take()}\n",
        "refusals.json": _json(list(_refusals())),
    }


def _serve(detailed: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Three steps of all requests, the last cut by a stop: reports by request, counters by step."""
    counters = StepCounters()
    reports = OpenReports(detailed, counters)
    for request_id, limits in LIMITS.items():
        reports.open(request_id, limits, sampled=request_id == "sampled")
    position, counts = dict.fromkeys(LIMITS, 0), []
    for number, kept in enumerate((6, 6, 3)):
        for blocks in _blocks(number, detailed):
            at = np.array([position[i] for i in blocks.request_ids])
            tokens = {i: list(range(200, 200 + kept)) for i in blocks.request_ids}
            reports.observe(blocks, at, tokens)
            for request_id in blocks.request_ids:
                position[request_id] += kept
        if number == 2:
            for request_id in LIMITS:
                reports.close(request_id)
            made = {request_id: reports.report(request_id) for request_id in LIMITS}
        reports.settle()
        taken = counters.take()
        assert taken is not None
        counts.append(taken)
    return made, counts


def _blocks(number: int, detailed: bool) -> Iterator[StepBlocks]:
    """One step's, requests of a kind together; seven drafts, five kept of each."""
    details = 2 if detailed else 0
    exceptions, stop = {1: 0.5, 3: 0.25}, (StopReason.GATE, StopReason.BUDGET, StopReason.CAP)[number]
    spent = 0.75 * (number + 1)
    yield make_blocks(["enforced", "sampled"], [exceptions] * 2, details=details, stop=stop, spent=spent)
    yield make_blocks(["shadow"], [exceptions], details=details, stop=stop, spent=spent, shadow=1)
    yield make_blocks(["strict"], [{}], details=details, stop=StopReason.PROTECTED)
    yield make_blocks(["phases"], [{0: 0.5}], details=details, stop=stop, spent=0.5, thinking=number == 0)
    yield make_blocks(["guarded"], [{}], details=details, stop=StopReason.INVALID, guard=number)


def _refusals() -> Iterator[dict[str, Any]]:
    from vllm.exceptions import VLLMValidationError

    from vllm_asd.upstream import requests

    for config, keys in REFUSED:
        try:
            requests._check(config, keys)
        except VLLMValidationError as error:
            yield {"server": config.model_dump(exclude_unset=True), "sent": repr(keys), "message": str(error)}
        else:
            raise AssertionError(f"{keys} was not refused")
    body = SimpleNamespace(vllm_xargs={"asd_gate": 0.1, "asd_budget": 1.0})
    try:
        requests._wrap_beam_search(lambda _: None)(body)
    except VLLMValidationError as error:
        yield {"server": {}, "sent": f"use_beam_search, {body.vllm_xargs}", "message": str(error)}
    else:
        raise AssertionError("a beam search was not refused")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _without_time(text: str) -> str:
    """When a series was made is the one thing that differs between two runs."""
    return re.sub(r"^(\S+_created\S*) .*$", r"\1 <time>", text, flags=re.MULTILINE)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in render().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
