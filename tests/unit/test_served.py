"""What a server says about itself, and the one line for each way in which it is of no use."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("openai")

from vllm_asd.tools.answers import Answer, Prompt, read_answers
from vllm_asd.tools.server.served import NotServed, Served, inspect_server, require_detailed

ASD = {
    "mode": "enforce",
    "budget": 8.0,
    "gate": 0.25,
    "block_cap": 2,
    "refill": 0.0,
    "exception_trace": [],
}
MODELS = {"data": [{"id": "m", "root": "org/m", "max_model_len": 512}]}


class _Server(ThreadingHTTPServer):
    answers: dict[str, Any]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        answer = self.server.answers.get(self.path)
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(b"not here" if answer is None else json.dumps(answer).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.answers = {"/v1/models": MODELS, "/version": {"version": "0.32.0"}}
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _url(server: _Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def _answer(server: _Server, speculation: Any) -> None:
    server.answers["/v1/chat/completions"] = {"metrics": {"speculative_decoding": speculation}}


def test_reads_limits_level_and_draft_length(server: _Server) -> None:
    _answer(server, {"num_spec_steps": 3, "num_draft_tokens": 15, "asd": ASD})
    served = inspect_server(_url(server) + "/v1/")
    assert (served.base_url, served.model, served.root) == (_url(server), "m", "org/m")
    assert (served.limits.budget, served.limits.gate, served.num_draft_tokens) == (8.0, 0.25, 5)
    require_detailed(served)


@pytest.mark.parametrize(
    ("speculation", "said"),
    [
        (None, "--per-request-spec-decode-metrics detailed"),
        ({"num_spec_steps": 1}, '"rejection_sample_method": "asd"'),
    ],
)
def test_a_server_without_reports_or_asd_is_told_what_to_add(
    server: _Server, speculation: Any, said: str
) -> None:
    _answer(server, speculation)
    with pytest.raises(NotServed, match=said) as refusal:
        inspect_server(_url(server))
    assert "\n" not in str(refusal.value)


def test_other_servers_wrong_names_and_nobody_are_told_apart(server: _Server) -> None:
    with pytest.raises(NotServed, match="serves m, not other"):
        inspect_server(_url(server), "other")
    server.answers = {}
    with pytest.raises(NotServed, match="answered 404: is that a vLLM server"):
        inspect_server(_url(server))
    with pytest.raises(NotServed, match="no vLLM server answers"):
        inspect_server("127.0.0.1:1")


def test_sums_alone_are_not_detailed(server: _Server) -> None:
    _answer(server, {"asd": {key: value for key, value in ASD.items() if key != "exception_trace"}})
    served: Served = inspect_server(_url(server))
    with pytest.raises(NotServed, match="detailed"):
        require_detailed(served)


def test_an_answer_cut_off_in_the_middle_is_sent_again(tmp_path: Any) -> None:
    line = json.dumps(Answer("t", "1", "asd", 2, 1, 1, 1, 0, 0.0, None, "d", [1, 2], "stop").__dict__)
    path = tmp_path / "answers.jsonl"
    path.write_text(f"{line}\n{line[:40]}")
    assert [answer.id for answer in read_answers(path)] == ["1"]


def test_a_prompt_is_known_by_its_text_alone() -> None:
    assert (
        Prompt("a", "1", "Why?").digest
        == Prompt("b", "2", " Why?\n").digest
        != Prompt("a", "1", "How?").digest
    )
