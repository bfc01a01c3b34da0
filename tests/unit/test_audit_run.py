"""The audit against a server that is made up: its order, its limits, what it refuses, how it resumes."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("tenacity")

from typer.testing import CliRunner

from vllm_asd.cli.audit import _FAILING, app
from vllm_asd.tools.answers import prompt_digest
from vllm_asd.tools.audit.items import ARMS, Item, read_items

LIMITS = {"asd_budget": 2.0, "asd_gate": 0.5, "asd_block_cap": 1, "asd_refill": 0.0}
PROMPTS = {f"What is {n} + {n}?": str(2 * n) for n in range(1, 6)}
_STRICT = {"strict_accepted_tokens": 0, "verified_blocks": 0, "exceptions": 0, "regret_spent": 0.0}


class _Server(ThreadingHTTPServer):
    """Answers right, but for the prompt about 3, which ASD gets wrong."""

    sent: list[dict[str, Any]]
    plugin_limits: dict[str, Any] | None = None
    most_answers: int | None = None
    key: str | None = None


class _Handler(BaseHTTPRequestHandler):
    def _is_admitted(self) -> bool:
        assert isinstance(self.server, _Server)
        if self.server.key is None or self.headers["Authorization"] == f"Bearer {self.server.key}":
            return True
        self._say(401, {"error": "Unauthorized"})
        return False

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        if not self._is_admitted():
            return
        found = {
            "/v1/models": {"data": [{"id": "m", "root": "org/m", "max_model_len": 512}]},
            "/version": {"version": "0.32.0"},
            "/plugins/asd/limits": self.server.plugin_limits,
        }.get(self.path)
        self._say(404 if found is None else 200, found)

    def do_POST(self) -> None:
        assert isinstance(self.server, _Server)
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_admitted():
            return
        if "return_token_ids" in payload or "prompt_logprobs" in payload:
            most = self.server.most_answers
            if most is not None and len(self.server.sent) >= most:
                self._say(400, {"error": "enough"})
                return
            self.server.sent.append(payload)
        if "prompt_logprobs" in payload:
            rest = [{str(token): {"logprob": -token / 100}} for token in payload["prompt"][1:]]
            self._say(200, {"choices": [{"prompt_logprobs": [None, *rest]}]})
        else:
            self._say(200, _chat(payload))

    def _say(self, status: int, answer: Any) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _chat(payload: dict[str, Any]) -> dict[str, Any]:
    text = payload["messages"][-1]["content"]
    gold = next((answer for prompt, answer in PROMPTS.items() if text.startswith(prompt)), "0")
    relaxed = payload.get("vllm_xargs", {}).get("asd_budget", 8.0) > 0
    wrong = relaxed and gold == "6"
    asd = {"mode": "enforce", "budget": 8.0, "gate": 0.5, "block_cap": 2, "refill": 0.0}
    asd |= {"exhausted_at_token": None, "exception_trace": [], **_STRICT}
    if relaxed:
        trace = [{"position": 1, "regret": 0.25}]
        asd |= {"strict_accepted_tokens": 3, "verified_blocks": 2, "exceptions": 1, "regret_spent": 0.25}
        asd["exception_trace"] = trace
    return {
        "prompt_token_ids": [1, 2, 3],
        "choices": [
            {
                "message": {"content": f"It is {7 if wrong else gold}."},
                "token_ids": [10, 20 + int(gold) + relaxed],
                "finish_reason": "stop",
            }
        ],
        "metrics": {
            "speculative_decoding": {
                "num_spec_steps": 2,
                "num_draft_tokens": 10,
                "num_accepted_draft_tokens": 4,
                "asd": asd,
            }
        },
    }


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    # lm-eval asks pip, the compiler and the GPU what they are: seconds each time.
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.sent = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "gsm8k").mkdir(parents=True)
    lines = (
        json.dumps({"id": f"i{n}", "prompt": prompt, "answer": answer, "meta": {}})
        for n, (prompt, answer) in enumerate(PROMPTS.items())
    )
    (folder / "gsm8k" / "audit.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _audit(server: _Server, data: Path, output: Path, *options: str) -> tuple[int, str]:
    arguments = [
        "--url",
        f"http://127.0.0.1:{server.server_port}",
        "--data",
        str(data),
        "--output",
        str(output),
    ]
    if "--limits" not in options:
        arguments += ["--limits", json.dumps(LIMITS)]
    result = CliRunner().invoke(app, [*arguments, "--tasks", "gsm8k", "--concurrency", "2", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def _without_latency(output: Path) -> list[Item]:
    return [item.model_copy(update={"latency_s": 0.0}) for item in read_items(output / "items.jsonl")]


def test_strict_asd_strict_with_the_limits_asked_for(server: _Server, data: Path, tmp_path: Path) -> None:
    code, said = _audit(server, data, tmp_path / "out", "--prompts", "4")
    assert code == 0, said
    generations = [payload for payload in server.sent if "messages" in payload]
    limits = [payload["vllm_xargs"] for payload in generations]
    assert limits == [{"asd_budget": 0}] * 4 + [LIMITS] * 4 + [{"asd_budget": 0}] * 4
    assert all(payload["temperature"] == 0 for payload in server.sent)
    items = read_items(tmp_path / "out" / "items.jsonl")
    assert Counter(item.arm for item in items) == dict.fromkeys(ARMS, 4)
    assert {(item.item_id, item.arm) for item in items if item.score == 0} == {("i2", "asd")}
    relaxed = next(item for item in items if item.key == ("gsm8k", "i2", "asd"))
    assert (relaxed.extracted, relaxed.exception_regrets, relaxed.strict_accepted) == ("7", (0.25,), 3)
    # Of the answer's tokens 10 and 27 alone, not of the prompt's.
    assert relaxed.loglikelihood == pytest.approx(-(0.10 + 0.27) / 2)
    kept = (tmp_path / "out" / "items.jsonl").read_text() + (tmp_path / "out" / "report.json").read_text()
    assert "What is" not in kept
    assert list((tmp_path / "out" / "lm-eval" / "asd").rglob("samples_gsm8k_*.jsonl"))


def test_a_server_with_a_key_is_asked_with_it(
    server: _Server, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key, server.plugin_limits = "right", {"asd_pricing": "remaining"}
    code, said = _audit(server, data, tmp_path / "out", "--prompts", "1")
    assert code == 1
    assert "asks for a key: give --api-key, or set VLLM_API_KEY" in said
    monkeypatch.setenv("VLLM_API_KEY", "right")
    config = _frozen(tmp_path, [], asd_pricing="realized")
    code, said = _audit(server, data, tmp_path / "out", "--limits", str(config))
    assert "the server runs asd_pricing='remaining' and 'realized' was frozen" in said
    assert _audit(server, data, tmp_path / "out", "--prompts", "1")[0] == 0


def test_the_key_of_the_option_is_sent_and_not_kept(
    server: _Server, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "sesame"
    monkeypatch.setenv("VLLM_API_KEY", "wrong")
    monkeypatch.setattr(sys, "argv", ["vllm-asd", "audit", "--api-key", "sesame", "--api-key=sesame"])
    code, said = _audit(server, data, tmp_path / "out", "--prompts", "1", "--api-key", "sesame")
    assert code == 0, said
    report = (tmp_path / "out" / "report.json").read_text()
    assert "--api-key" in report
    assert "sesame" not in report


@pytest.mark.parametrize(
    ("fail_on", "code"), [((), 0), (("--fail-on", "inferior"), 0), (("--fail-on", "undecided"), 3)]
)
def test_an_undecided_verdict_fails_where_asked(
    server: _Server, data: Path, tmp_path: Path, fail_on: tuple[str, ...], code: int
) -> None:
    """Five items decide nothing."""
    assert _audit(server, data, tmp_path / "out", *fail_on)[0] == code


def test_undecided_implies_inferior() -> None:
    assert _FAILING == {"inferior": ("inferior",), "undecided": ("inferior", "undecided")}


def test_json_is_all_of_stdout(server: _Server, data: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    arguments = ["--url", url, "--data", str(data), "--output", str(tmp_path / "out"), "--tasks", "gsm8k"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == json.loads((tmp_path / "out" / "report.json").read_text())


@pytest.mark.parametrize("most_answers", [3, 8, 17])
def test_a_killed_audit_goes_on_where_it_was(
    server: _Server, data: Path, tmp_path: Path, most_answers: int
) -> None:
    assert _audit(server, data, tmp_path / "whole")[0] == 0
    everything = Counter(json.dumps(payload, sort_keys=True) for payload in server.sent)
    server.sent.clear()
    server.most_answers = most_answers
    code, said = _audit(server, data, tmp_path / "killed")
    assert code == 1
    assert "run the same command again" in said
    responses = tmp_path / "killed" / "lm-eval" / "responses.jsonl"
    responses.write_text(responses.read_text() + '{"key": "cut o')
    server.most_answers = None
    assert _audit(server, data, tmp_path / "killed")[0] == 0
    assert Counter(json.dumps(payload, sort_keys=True) for payload in server.sent) == everything
    assert _without_latency(tmp_path / "killed") == _without_latency(tmp_path / "whole")


def test_another_audit_in_the_same_folder_is_refused(server: _Server, data: Path, tmp_path: Path) -> None:
    assert _audit(server, data, tmp_path / "out", "--prompts", "1")[0] == 0
    code, said = _audit(server, data, tmp_path / "out", "--limits", '{"asd_budget": 1}')
    assert code == 2
    assert "was begun with limits.asd_budget=2.0, not 1.0: give the same, or another --output" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--limits", '{"asd_budget": 9}'), "asd_budget=9.0 is laxer than this server allows"),
        (("--limits", '{"asd_pricing": "realized"}'), "asd_pricing can only be set by the server"),
        (("--limits", "8"), "--limits is not a JSON object but 8: give for example"),
        (("--tasks", "humaneval"), "no humaneval/audit.jsonl in"),
        (("--tasks", "nothing"), "there is no task nothing"),
        (("--data", "builtin", "--tasks", "coding"), "allow it with --run-code"),
        (("--max-tokens", "mmlu=9"), "--max-tokens names mmlu"),
        (("--max-tokens", "many"), "--max-tokens 'many': give a number"),
        (("--url", "127.0.0.1:1"), "no vLLM server answers"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    server: _Server, data: Path, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    code, output = _audit(server, data, tmp_path / "out", *options)
    assert code == (1 if said.startswith(("asd_budget", "no vLLM")) else 2)
    assert said in output
    assert not server.sent


def _frozen(folder: Path, prompts: list[str] | None, **speculation: Any) -> Path:
    keys = {"method": "eagle3", "model": "a/head", "num_speculative_tokens": 5, **LIMITS, **speculation}
    config = folder / "frozen.yaml"
    config.write_text(json.dumps({"speculative-config": {**keys, "rejection_sample_method": "asd"}}))
    if prompts is not None:
        digests = [prompt_digest(prompt) for prompt in prompts]
        (folder / "frozen.calibration.json").write_text(json.dumps({"prompts": digests}))
    return config


def test_frozen_limits_are_sent_and_described(server: _Server, data: Path, tmp_path: Path) -> None:
    config = _frozen(tmp_path, ["another prompt"])
    code, said = _audit(server, data, tmp_path / "out", "--limits", str(config), "--prompts", "1")
    assert code == 0, said
    assert [payload["vllm_xargs"] for payload in server.sent if "messages" in payload][1] == LIMITS
    meta = json.loads((tmp_path / "out" / "report.json").read_text())["provenance"]
    assert (meta["drafter"], meta["calibration_prompts"], meta["limits"]) == ("head", 1, LIMITS)


def test_prompts_of_the_calibration_are_refused(server: _Server, data: Path, tmp_path: Path) -> None:
    config = _frozen(tmp_path, list(PROMPTS)[:2])
    code, said = _audit(server, data, tmp_path / "out", "--limits", str(config))
    assert code == 1
    assert "calibration used 2 of these 5 prompts (2 of gsm8k)" in said
    assert not server.sent


def test_limits_of_unknown_calibration_carry_a_note(server: _Server, data: Path, tmp_path: Path) -> None:
    config = _frozen(tmp_path, None)
    _, said = _audit(server, data, tmp_path / "out", "--limits", str(config), "--prompts", "1")
    assert "comes without frozen.calibration.json" in said
    assert "frozen.calibration.json" in (tmp_path / "out" / "report.md").read_text()


def test_a_server_with_other_pricing_is_refused(server: _Server, data: Path, tmp_path: Path) -> None:
    server.plugin_limits = {"asd_pricing": "remaining"}
    config = _frozen(tmp_path, [], asd_pricing="realized")
    code, said = _audit(server, data, tmp_path / "out", "--limits", str(config))
    assert code == 1
    assert "the server runs asd_pricing='remaining' and 'realized' was frozen" in said
