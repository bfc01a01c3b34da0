"""Wrong settings over real HTTP: 400 with the key and what is allowed, and the next request is answered."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import speculation
from vllm_asd.tools.server import VllmServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MODEL = "tiny"
PROMPT = "t5 t6 t7 t5 t6"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 8},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 8},
    "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8},
}

# (what the client sends, what the answer must name)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"asd_budget": 8.5}, "between 0 and 8.0"),
    ({"asd_budget": 1e300}, "between 0 and 8.0"),
    ({"asd_budget": 10**30}, "integers"),
    ({"asd_budget": -1}, "a finite number >= 0"),
    ({"asd_budget": -1e-9}, "a finite number >= 0"),
    ({"asd_budget": float("nan")}, "a finite number >= 0"),
    ({"asd_budget": float("inf")}, "a finite number >= 0"),
    ({"asd_budget": float("-inf")}, "a finite number >= 0"),
    ({"asd_budget": "0"}, "a finite number >= 0"),
    ({"asd_budget": "lots"}, "a finite number >= 0"),
    ({"asd_budget": ""}, "a finite number >= 0"),
    ({"asd_budget": [1.0]}, "a finite number >= 0"),
    ({"asd_budget": []}, "a finite number >= 0"),
    ({"asd_gate": 0.9}, "between 0 and 0.5"),
    ({"asd_gate": -0.1}, "a finite number >= 0"),
    ({"asd_gate": float("nan")}, "a finite number >= 0"),
    ({"asd_gate": "0.1"}, "a finite number >= 0"),
    ({"asd_gate": ["0.1"]}, "a finite number >= 0"),
    ({"asd_block_cap": 3}, "between 0 and 2"),
    ({"asd_block_cap": 1.5}, "an integer from 0 to 128"),
    ({"asd_block_cap": -1}, "an integer from 0 to 128"),
    ({"asd_block_cap": 1000}, "an integer from 0 to 128"),
    ({"asd_block_cap": "two"}, "an integer from 0 to 128"),
    ({"asd_block_cap": float("inf")}, "an integer from 0 to 128"),
    ({"asd_refill": 0.1}, "between 0 and 0.0"),
    ({"asd_refill": "x"}, "a finite number >= 0"),
    ({"asd_mode": "off"}, "'enforce' or 'shadow'"),
    ({"asd_mode": 1}, "'enforce' or 'shadow'"),
    ({"asd_mode": "ENFORCE"}, "'enforce' or 'shadow'"),
    ({"asd_guard": "off"}, "leave asd_guard out or send 'on'"),
    ({"asd_guard": "maybe"}, "'off' or 'on'"),
    ({"asd_guard": True}, "asd_guard"),
    ({"asd_guard": ["on"]}, "'off' or 'on'"),
    ({"asd_pricing": "realized"}, "can only be set by the server"),
    ({"asd_scope": "all"}, "can only be set by the server"),
    ({"asd_protect": "none"}, "can only be set by the server"),
    ({"asd_answer_budget": 1}, "needs a server with"),
    ({"asd_answer_block_cap": 0}, "needs a server with"),
    ({"asd_answer_gate": "x"}, "a finite number >= 0"),
    ({"asd_bugdet": 1}, "not an ASD key"),
    ({"asd_": 1}, "not an ASD key"),
    ({"asd_budget": 1, "asd_gaet": 0.1}, "not an ASD key"),
]


@pytest.fixture(scope="module")
def server(tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> Iterator[VllmServer]:
    """An ASD server on the tiny Llama, gate 0.5, with a guard."""
    limits = {"budget": 8.0, "gate": 0.5, "block_cap": 2, "guard": "on"}
    config = speculation("draft_model", 3, tiny_llama_drafter_dir, **limits)
    args = ["--served-model-name", MODEL, "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8"]
    args += ["--speculative-config", json.dumps(config), "--per-request-spec-decode-metrics", "detailed"]
    with VllmServer(tiny_llama_dir, args, omp_threads=1) as running:
        yield running


def _post(server: VllmServer, path: str, xargs: dict[str, Any] | None, **more: Any) -> tuple[int, str]:
    body = {"model": MODEL, "temperature": 0, **BODIES[path], **more}
    if xargs is not None:
        body["vllm_xargs"] = xargs
    request = urllib.request.Request(
        server.base_url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _assert_alive(server: VllmServer, path: str) -> None:
    status, text = _post(server, path, {"asd_budget": 4.0})
    assert status == 200, text


@pytest.mark.parametrize(("xargs", "message"), WRONG, ids=[json.dumps(xargs) for xargs, _ in WRONG])
def test_wrong_request(server: VllmServer, xargs: dict[str, Any], message: str) -> None:
    """Chat and completions, streamed or not: 400, the key and what is allowed; then a good answer."""
    key = sorted(xargs)[-1]
    for path, stream in (("/v1/completions", False), ("/v1/chat/completions", True)):
        status, text = _post(server, path, xargs, stream=stream)
        assert status == 400, (path, text)
        assert message in text
        if message != "integers":  # vLLM's own check of the range comes first
            assert key in text
        _assert_alive(server, path)


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("stream", [False, True])
def test_every_route(server: VllmServer, path: str, stream: bool) -> None:
    """All four routes refuse before a stream begins, and take a stricter budget."""
    for xargs in ({"asd_budget": 9}, {"asd_gate": "x"}, {"asd_nonsense": 1}):
        status, text = _post(server, path, xargs, stream=stream)
        assert status == 400, text
        assert next(iter(xargs)) in text
    status, text = _post(server, path, {"asd_budget": 0, "asd_mode": "shadow"}, stream=stream)
    assert status == 200, text


def test_other_keys_are_not_ours(server: VllmServer) -> None:
    """Whatever else rides in `vllm_xargs` is left alone."""
    status, text = _post(server, "/v1/completions", {"my_key": "x", "asdf": 1})
    assert status == 200, text


def test_a_client_that_hangs_up(server: VllmServer) -> None:
    """Streams cut in the middle: nothing runs on, no answer is lost, no budget broken."""
    for _ in range(12):
        body = {"model": MODEL, "temperature": 0, "stream": True, "ignore_eos": True} | BODIES[
            "/v1/completions"
        ]
        request = urllib.request.Request(
            server.base_url + "/v1/completions",
            json.dumps(body | {"max_tokens": 200}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            response.readline()
    status, text = _post(server, "/v1/completions", None, ignore_eos=True, max_tokens=100)
    assert status == 200
    report = json.loads(text)["metrics"]["speculative_decoding"]["asd"]
    assert 0 < report["regret_spent"] <= report["budget"] == 8.0
    assert server.metrics().total("vllm:num_requests_running") == 0
