"""The collectors: names, labels, values, and that they outlive vLLM's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from vllm_asd.telemetry.block_tally import STOP_LABELS
from vllm_asd.telemetry.prometheus import Collectors
from vllm_asd.tools.server import Metrics

COUNTS = {
    "exceptions": 3,
    "regret": 1.25,
    "reused_tokens": 4,
    "accepted_tokens": 10,
    "strict_accepted_tokens": 6,
    "blocks": {"gate": 2, "end": 1},
    "exhausted_requests": 1,
    "guarded_requests": 2,
    "request_regret": [0.0, 1.25],
}


@pytest.fixture
def metrics() -> Metrics:
    registry = CollectorRegistry()
    collectors = Collectors(registry)
    for engine in (0, 1):
        collectors.enable("m", engine)
    collectors.observe(COUNTS, "m", 1)
    collectors.observe(COUNTS, "m", 1)
    return Metrics.parse(generate_latest(registry).decode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exceptions_total", 6),
        ("regret_total", 2.5),
        ("reused_tokens_total", 8),
        ("accepted_tokens_total", 20),
        ("strict_accepted_tokens_total", 12),
        ("exhausted_requests_total", 2),
        ("guarded_requests_total", 4),
        ("request_regret_count", 4),
        ("request_regret_sum", 2.5),
    ],
)
def test_counters_add_up_per_engine(metrics: Metrics, name: str, value: float) -> None:
    assert metrics.total(f"vllm_asd:{name}", model_name="m", engine="1") == value
    assert metrics.total(f"vllm_asd:{name}", engine="0") == 0


def test_every_stop_is_a_series_before_it_happens(metrics: Metrics) -> None:
    values = {stop: metrics.total("vllm_asd:blocks_total", stop=stop, engine="1") for stop in STOP_LABELS}
    assert values == dict.fromkeys(STOP_LABELS, 0.0) | {"gate": 4.0, "end": 2.0}


def test_enabled_is_a_gauge_of_one(metrics: Metrics) -> None:
    assert [sample.value for sample in metrics.samples("vllm_asd:enabled")] == [1, 1]


def test_survive_vllms_unregistering_and_count_on() -> None:
    pytest.importorskip("vllm")
    program = (
        "from prometheus_client import REGISTRY, generate_latest\n"
        "from vllm.v1.metrics.prometheus import unregister_vllm_metrics\n"
        "from vllm_asd.telemetry.prometheus import collectors\n"
        f"counts = {COUNTS!r}\n"
        "for _ in range(2):\n"
        "    unregister_vllm_metrics()\n"
        "    collectors().enable('m', 0)\n"
        "    collectors().observe(counts, 'm', 0)\n"
        "print(generate_latest(REGISTRY).decode())\n"
    )
    output = _run(program)
    assert Metrics.parse(output).total("vllm_asd:exceptions_total") == 6


def test_several_api_servers_add_up(tmp_path: Path) -> None:
    program = (
        "from vllm_asd.telemetry.prometheus import collectors\n"
        "collectors().enable('m', 0)\n"
        f"collectors().observe({COUNTS!r}, 'm', 0)\n"
    )
    read = (
        "from prometheus_client import CollectorRegistry, generate_latest\n"
        "from prometheus_client.multiprocess import MultiProcessCollector\n"
        "registry = CollectorRegistry()\n"
        "MultiProcessCollector(registry)\n"
        "print(generate_latest(registry).decode())\n"
    )
    for _ in range(2):
        _run(program, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    metrics = Metrics.parse(_run(read, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)))
    assert metrics.total("vllm_asd:exceptions_total", model_name="m", engine="0") == 6
    assert metrics.total("vllm_asd:enabled") == 1
    assert metrics.total("vllm_asd:request_regret_count") == 4


def _run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
