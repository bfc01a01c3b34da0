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


def client_for(config: AsdConfig | None, api_key: list[str] | None = None, root_path: str = "") -> TestClient:
    plugin, app = AsdEndpoints(), FastAPI(root_path=root_path)
    plugin.attach_router(app)
    additional = {} if config is None else {CONFIG_KEY: config.model_dump()}
    engine: Any = SimpleNamespace(vllm_config=SimpleNamespace(additional_config=additional))
    asyncio.run(plugin.init_state(engine, app.state, Namespace(api_key=api_key)))
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


ROUTES = ("status", "limits", "counters")
BAD_HEADERS = (None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic right", "right", "Bearer right ")


class TestKeys:
    """The routes ask for the key that vLLM asks for under /v1."""

    @pytest.fixture(autouse=True)
    def _no_key_of_our_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("VLLM_API_KEY", raising=False)

    @pytest.mark.parametrize("route", ROUTES)
    def test_without_a_key_everyone_is_let_in(self, route: str, registry: CollectorRegistry) -> None:
        assert client_for(AsdConfig()).get(f"/plugins/asd/{route}").status_code == 200
        assert client_for(AsdConfig(), api_key=[""]).get(f"/plugins/asd/{route}").status_code == 200

    @pytest.mark.parametrize("route", ROUTES)
    @pytest.mark.parametrize("header", BAD_HEADERS)
    def test_without_the_right_key_nobody_is(self, route: str, header: str | None) -> None:
        headers = {} if header is None else {"Authorization": header}
        answer = client_for(AsdConfig(), ["right"]).get(f"/plugins/asd/{route}", headers=headers)
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})

    @pytest.mark.parametrize("route", ROUTES)
    @pytest.mark.parametrize("header", ["Bearer right", "bearer right", "Bearer other"])
    def test_each_of_several_keys_opens(self, route: str, header: str, registry: CollectorRegistry) -> None:
        client = client_for(AsdConfig(), ["right", "other"])
        assert client.get(f"/plugins/asd/{route}", headers={"Authorization": header}).status_code == 200

    def test_the_option_goes_before_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_API_KEY", "environment")
        for api_key, opens in ((None, "environment"), (["option"], "option")):
            for key in ("environment", "option"):
                headers = {"Authorization": f"Bearer {key}"}
                answer = client_for(AsdConfig(), api_key).get("/plugins/asd/status", headers=headers)
                assert answer.status_code == (200 if key == opens else 401)

    def test_a_root_path_opens_nothing(self) -> None:
        client = client_for(AsdConfig(), ["right"], root_path="/proxied")
        for path in ("/plugins/asd/status", "/proxied/plugins/asd/status"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer right"}).status_code == 200

    def test_before_the_keys_are_known_it_is_closed(self) -> None:
        app = FastAPI()
        AsdEndpoints().attach_router(app)
        assert TestClient(app).get("/plugins/asd/status").status_code == 401

    @pytest.mark.parametrize("header", [*BAD_HEADERS, "Bearer right", "bearer right", "BEARER other"])
    @pytest.mark.parametrize("method", ["GET", "OPTIONS"])
    def test_vllm_itself_would_decide_the_same(self, header: str | None, method: str) -> None:
        vllms = pytest.importorskip("vllm.entrypoints.serve.middleware.authenticate")
        guarded = FastAPI()
        guarded.get("/v1/status")(lambda: {})
        guarded.add_middleware(vllms.AuthenticationMiddleware, tokens=["right", "other"])
        headers = {} if header is None else {"Authorization": header}
        theirs = TestClient(guarded).request(method, "/v1/status", headers=headers)
        ours = client_for(AsdConfig(), ["right", "other"]).request(
            method, "/plugins/asd/status", headers=headers
        )
        assert ours.status_code == theirs.status_code
        assert ours.status_code == 200 or ours.content == theirs.content


def test_the_entry_point_is_what_vllm_wants() -> None:
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.endpoint_plugins"]["asd"].partition(":")
    plugin = getattr(importlib.import_module(module), name)()
    assert isinstance(plugin, EndpointPlugin)
    assert plugin.name == "asd"
