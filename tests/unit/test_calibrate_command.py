"""`vllm-asd calibrate` from the first request to the frozen file, against a server that plays vLLM."""

import hashlib
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

pytest.importorskip("openai")

from vllm_asd.cli.calibrate import app
from vllm_asd.config import split_speculative_config
from vllm_asd.tools.answers import prompt_digest
from vllm_asd.tools.calibrate.freeze import Base
from vllm_asd.tools.calibrate.grid import Setting
from vllm_asd.tools.calibrate.inputs import read_base

LAX = {"asd_budget": 1000.0, "asd_gate": 20.0, "asd_block_cap": 5, "asd_refill": 1.0, "asd_mode": "enforce"}
BASE = """\
model: org/target
speculative-config:
  method: eagle3
  model: org/head
  num_speculative_tokens: 5
  asd_mode: shadow
  asd_protect: none
"""
K = 5
TOKENS = 60


class PlayedServer(ThreadingHTTPServer):
    """Drafts K tokens a block; the target rejects one, at a place and a regret that the prompt decides."""

    limits = LAX
    fails_after = 10**9

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        prompt = request["messages"][0]["content"]
        limits = {**self.limits, **request.get("vllm_xargs", {})}
        dice = random.Random(prompt)
        shadow = limits["asd_mode"] == "shadow"
        tokens: list[int] = []
        rounds = accepted = 0
        spent, exhausted, trace = 0.0, None, []
        while len(tokens) < TOKENS:
            place, regret = dice.randrange(K), dice.expovariate(0.3)
            stake = K - place
            kept = place
            rho = min(limits["asd_budget"] + limits["asd_refill"] * len(tokens), 1e9) - spent
            if limits["asd_budget"] and regret / stake <= limits["asd_gate"]:
                if regret <= rho:
                    spent += regret
                    trace.append({"position": len(tokens) + place, "regret": regret, "at_stake": stake})
                    kept = place if shadow else K
                else:
                    exhausted = exhausted or len(tokens)
            rounds += 1
            accepted += kept
            tokens += [1] * place + [2 if kept > place else 1] + [1] * max(0, kept - place)
        asd = {
            "mode": limits["asd_mode"],
            **{key: limits[f"asd_{key}"] for key in ("budget", "gate", "block_cap", "refill")},
            "strict_accepted_tokens": accepted,
            "verified_blocks": rounds if limits["asd_budget"] else 0,
            "exceptions": len(trace),
            "regret_spent": spent,
            "exhausted_at_token": exhausted,
            "exception_trace": trace,
        }
        speculation = {
            "num_spec_steps": rounds,
            "num_draft_tokens": K * rounds,
            "num_accepted_draft_tokens": accepted,
            "asd": asd,
        }
        message = {"role": "assistant", "content": "x"}
        choice = {"index": 0, "finish_reason": "length", "message": message, "token_ids": tokens}
        metrics = {"speculative_decoding": speculation}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]} | {
            "metrics": metrics
        }


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        models = {"data": [{"id": "m", "root": "/a/folder", "max_model_len": 512}]}
        self._send(200, {"version": "0.32.0"} if self.path == "/version" else models)

    def do_POST(self) -> None:
        assert isinstance(self.server, PlayedServer)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        # The probe asks for no limits.
        if "vllm_xargs" in request:
            if self.server.asked.total() >= self.server.fails_after:
                self._send(500, {"error": {"message": "out of memory"}})
                return
            self.server.asked[hashlib.sha256(body).hexdigest()] += 1
        self._send(200, self.server.answer(request))

    def _send(self, status: int, payload: dict[str, Any]) -> None:
        content = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[PlayedServer]:
    with PlayedServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    for name in ("maths", "chat"):
        rows = [{"id": f"{name}/{i}", "prompt": f" A {name} question, number {i}. "} for i in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def calibrate(server: PlayedServer, folder: Path, *more: str) -> Result:
    data = (f"--data={name}={folder / name}.jsonl" for name in ("maths", "chat"))
    return CliRunner().invoke(
        app,
        [
            *data,
            f"--url=http://127.0.0.1:{server.server_port}",
            f"--server-config={folder / 'base.yaml'}",
            f"--output={folder / 'out'}",
            f"--freeze={folder / 'frozen.yaml'}",
            "--prompts=6",
            "--max-exceptions=20",
            "--max-regret=20",
            "--concurrency=4",
            *more,
        ],
    )


def test_freezes_the_best_allowed_setting_with_its_provenance(server: PlayedServer, folder: Path) -> None:
    result = calibrate(server, folder)
    assert result.exit_code == 0, result.output
    frozen = yaml.safe_load((folder / "frozen.yaml").read_text())
    native, asd = split_speculative_config(frozen["speculative-config"])
    report = json.loads((folder / "frozen.calibration.json").read_text())
    chosen = report["chosen"]

    assert (frozen["model"], native["model"]) == ("org/target", "org/head")
    assert asd is not None
    assert asd.asd_gate == chosen["setting"]["gate"]
    # What the base says of other keys stays; looking only would not serve anybody.
    assert (asd.asd_protect, asd.asd_mode) == ("none", "enforce")
    allowed = [t for t in report["tried"] if t["prompts"] == 12 and t["within_caps"]]
    assert chosen["gain"][0] == max(t["gain"][0] for t in allowed) > 1
    assert report["prompts"] == sorted(
        prompt_digest(f"A {name} question, number {i}.") for name in ("maths", "chat") for i in range(6)
    )
    assert report["control_noise"] == 0
    assert set(report["chosen_by_task"]) == {"maths", "chat"}
    for written in (folder / "frozen.yaml", folder / "frozen.calibration.json"):
        assert str(folder) not in written.read_text()
        assert "A maths question" not in written.read_text()


def test_json_is_all_of_stdout(server: PlayedServer, folder: Path) -> None:
    result = calibrate(server, folder, "--json")
    assert json.loads(result.stdout) == json.loads((folder / "frozen.calibration.json").read_text())
    assert "first strict rejections" in result.stderr


def test_a_folder_of_something_else_is_refused_before_the_server_is_asked(
    server: PlayedServer, folder: Path
) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "thesis.txt").write_text("mine")
    result = calibrate(server, folder, "--url=http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "belongs to something else: it holds thesis.txt" in result.stderr


def test_goes_on_after_a_failure_without_asking_twice(server: PlayedServer, folder: Path) -> None:
    """As after a kill: what is on disk is not asked again, and the result is the uninterrupted one."""
    server.fails_after = 50
    stopped = calibrate(server, folder)
    assert stopped.exit_code == 1
    assert "a request failed (Error code: 500" in stopped.stderr
    assert not (folder / "frozen.yaml").exists()
    server.fails_after = 10**9
    assert calibrate(server, folder).exit_code == 0
    # Nor what was under way when the request failed.
    assert set(server.asked.values()) == {1}
    resumed = (folder / "frozen.yaml").read_text()
    assert calibrate(server, folder, f"--output={folder / 'again'}").exit_code == 0
    assert (folder / "frozen.yaml").read_text() == resumed


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--data=maths"], "--data maths: give NAME=FILE.jsonl"),
        (["--concurrency=1,2"], "--concurrency 1,2: give one number"),
        (["--max-tokens=80"], "was begun with max_tokens=96, not 80: give the same, or another --output"),
        (["--max-regret=0.01"], "no setting keeps within the caps; the nearest, g"),
        (["--gates=0.5,x"], "--gates 0.5,x: give numbers"),
        (
            ["--data=maths=nowhere.jsonl"],
            "--data maths=nowhere.jsonl: give NAME=FILE.jsonl with a file that exists",
        ),
        (["--freeze=frozen.json"], "vLLM takes only .yaml"),
        (["--model=m"], "--model stands in the --server-config file"),
        (["--url=http://127.0.0.1:1"], "no vLLM server answers"),
    ],
)
def test_one_line_for_each_mistake(server: PlayedServer, folder: Path, more: list[str], said: str) -> None:
    if "--max-tokens=80" in more:
        assert calibrate(server, folder).exit_code == 0
    result = calibrate(server, folder, *more)
    ran = said.startswith(("no setting", "no vLLM"))
    assert result.exit_code == (1 if ran else 2)
    assert result.stderr.startswith("vllm-asd calibrate: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_server_with_everyday_limits_is_told_how_to_start(server: PlayedServer, folder: Path) -> None:
    server.limits = {**LAX, "asd_gate": 0.25}
    result = calibrate(server, folder)
    assert result.exit_code == 1
    assert "asd_gate=0.25 is narrower than the 5 to be tried" in result.stderr
    assert server.asked.total() == 0


def test_base_must_say_what_a_server_does_not() -> None:
    with pytest.raises(ValueError, match="give --model"):
        Base.of({"speculative-config": {"num_speculative_tokens": 5}})
    with pytest.raises(ValueError, match="with num_speculative_tokens"):
        Base.of({"model": "m", "speculative_config": {"method": "ngram"}})
    with pytest.raises(ValueError, match="--speculative-config is not a JSON object but ngram "):
        read_base(None, "m", "ngram", None)
    base = Base.of({"model": "m", "speculative_config": {"num_speculative_tokens": 3}}, drafter="head")
    assert base.frozen(Setting(0.5, 1, 2, 0))["speculative-config"]["model"] == "head"
