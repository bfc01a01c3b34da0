"""The routes under /plugins/asd/ say what the server's settings and counters say."""

import asyncio
import importlib
import tomllib
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from vllm_asd.config import AsdConfig
from vllm_asd.serving import AsdEndpoints, endpoints
from vllm_asd.serving.counters import counters_by_engine
from vllm_asd.telemetry.prometheus import Collectors
from vllm_asd.upstream.engine_args import CONFIG_KEY

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {
    "exceptions": 3,
    "regret": 1.25,
    "reused_tokens": 4,
    "accepted_tokens": 10,
    "strict_accepted_tokens": 5,
    "blocks": {"gate": 4, "end": 1},
    "exhausted_requests": 1,
    "guarded_requests": 0,
    "request_regret": [0.0, 1.25],
}


def client_for(config: AsdConfig | None) -> TestClient:
    plugin, app = AsdEndpoints(), FastAPI()
    plugin.attach_router(app)
    additional = {} if config is None else {CONFIG_KEY: config.model_dump()}
    engine: Any = SimpleNamespace(vllm_config=SimpleNamespace(additional_config=additional))
    asyncio.run(plugin.init_state(engine, app.state, Namespace()))
    return TestClient(app)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    registry = CollectorRegistry()
    monkeypatch.setattr(endpoints, "metrics_registry", lambda: registry)
    return registry


@pytest.mark.parametrize(
    ("config", "enabled", "mode"),
    [
        (None, False, "off"),
        (AsdConfig(), True, "enforce"),
        (AsdConfig(asd_mode="shadow"), True, "shadow"),
        (AsdConfig(asd_budget=0.0), True, "strict"),
    ],
)
def test_status(config: AsdConfig | None, enabled: bool, mode: str) -> None:
    answer = client_for(config).get("/plugins/asd/status").json()
    assert (answer["enabled"], answer["mode"]) == (enabled, mode)


def test_limits_are_the_servers() -> None:
    config = AsdConfig(asd_budget=2.0, asd_block_cap=1)
    assert AsdConfig(**client_for(config).get("/plugins/asd/limits").json()) == config
    assert client_for(None).get("/plugins/asd/limits").json() == {}


def test_counters_by_engine(registry: CollectorRegistry) -> None:
    collectors = Collectors(registry)
    for engine in (0, 1):
        collectors.enable("m", engine)
    collectors.observe(COUNTS, "m", 1)
    answer = client_for(AsdConfig()).get("/plugins/asd/counters").json()
    assert answer == counters_by_engine(registry)
    idle, busy = answer["0"], answer["1"]
    assert busy["model_name"] == "m"
    assert (busy["exceptions"], busy["regret"], busy["enabled"]) == (3, 1.25, 1)
    assert busy["blocks"]["gate"] == 4
    assert busy["request_regret"] == {"count": 2, "sum": 1.25}
    # 15 tokens in place of 10.
    assert busy["gain_over_strict"] == pytest.approx(0.5)
    assert idle["gain_over_strict"] is None


def test_the_entry_point_is_what_vllm_wants() -> None:
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.endpoint_plugins"]["asd"].partition(":")
    plugin = getattr(importlib.import_module(module), name)()
    assert isinstance(plugin, EndpointPlugin)
    assert plugin.name == "asd"
