"""Scope "phases" over real HTTP: both pools in the report, in a stream's last chunk and in the counters."""

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.engines import speculation
from vllm_asd.tools.server import Metrics, ServerDied, VllmServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "tiny"
THINK, END = 3, 4  # of the tiny Llama's tokenizer
PHASES = ("reasoning", "answer")
COUNTERS = ("exceptions_total", "regret_total")
ENGINE = ["--served-model-name", MODEL, "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "24"]
# A cached prefix is another batch shape, which may round otherwise.
ENGINE += ["--no-enable-prefix-caching", "--per-request-spec-decode-metrics", "detailed"]


class Pool(NamedTuple):
    """One phase's limits, by their names in the report."""

    budget: float
    gate: float = 2.0
    block_cap: int = 4
    refill: float = 0.0


REASONING = Pool(50.0)
ANSWER = Pool(20.0, 1.0, 3)
# What a request asks for, and what is promised to hold then in its reasoning and in its answer.
WISHES: list[tuple[dict[str, Any], Pool, Pool]] = [
    ({}, REASONING, ANSWER),
    ({"asd_budget": 0.5, "asd_answer_budget": 20.0}, Pool(0.5), ANSWER),
    ({"asd_answer_budget": 0.5}, REASONING, ANSWER._replace(budget=0.5)),
    ({"asd_budget": 30.0, "asd_gate": 1.5}, Pool(30.0, 1.5), ANSWER),
    ({"asd_budget": 2.0, "asd_gate": 0.5, "asd_block_cap": 1}, Pool(2.0, 0.5, 1), Pool(2.0, 0.5, 1)),
    ({"asd_answer_gate": 0.25, "asd_answer_block_cap": 1}, REASONING, Pool(20.0, 0.25, 1)),
    ({"asd_budget": 0, "asd_answer_budget": 1}, Pool(0.0), ANSWER._replace(budget=1.0)),
    ({"asd_answer_block_cap": 0}, REASONING, ANSWER._replace(block_cap=0)),
]
REASONING_EXHAUSTED, ANSWER_EXHAUSTED = 1, 2


class Asked(NamedTuple):
    """A request and what came back."""

    wish: int
    prompt: list[int]
    token_ids: list[int]
    report: dict[str, Any]

    def phase_at(self, position: int) -> str:
        """Where an output position lies, by the markers in front of it."""
        markers = [t for t in self.prompt + self.token_ids[:position] if t in (THINK, END)]
        return "reasoning" if markers and markers[-1] == THINK else "answer"

    def exceptions_in(self, phase: str, behind: int = -1) -> list[dict[str, Any]]:
        """The trace's entries that lie in a phase, behind an output position."""
        trace = [entry for entry in self.report["exception_trace"] if entry["position"] > behind]
        return [entry for entry in trace if self.phase_at(entry["position"]) == phase]


class Exchange(NamedTuple):
    """The server's counters before and after some requests."""

    before: Metrics
    asked: list[Asked]
    after: Metrics


@pytest.fixture(scope="module")
def server(tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> Iterator[VllmServer]:
    """A server whose two pools differ in every limit but the refill."""
    limits = {f"answer_{name}": value for name, value in ANSWER._asdict().items()} | REASONING._asdict()
    config = speculation("draft_model", 4, tiny_llama_drafter_dir, scope="phases", **limits)
    args = [*ENGINE, "--reasoning-parser", "deepseek_r1", "--speculative-config", json.dumps(config)]
    with VllmServer(tiny_llama_dir, args, omp_threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def exchange(server: VllmServer) -> Exchange:
    """Every wish, from prompts that end in the reasoning and from prompts that do not, all at once."""
    before = _settled(server)
    bodies: list[tuple[int, dict[str, Any]]] = [
        (wish, {"prompt": prompt_of(row), "vllm_xargs": xargs, "max_tokens": 120})
        for wish, (xargs, _, _) in enumerate(WISHES)
        for row in range(4)
    ]
    # Long ones that begin in the pool that will be exhausted: most get into the other behind it.
    for wish, start in ((REASONING_EXHAUSTED, 0), (ANSWER_EXHAUSTED, 1)):
        body = {"vllm_xargs": WISHES[wish][0], "max_tokens": 240}
        bodies += [(wish, body | {"prompt": prompt_of(row)}) for row in range(start, 48, 2)]
    with ThreadPoolExecutor(24) as pool:
        responses = list(pool.map(lambda entry: _complete(server, entry[1]), bodies))
    asked = [
        Asked(wish, body["prompt"], _token_ids(response), _report(response))
        for (wish, body), response in zip(bodies, responses, strict=True)
    ]
    return Exchange(before, asked, _settled(server))


def prompt_of(row: int) -> list[int]:
    """Even rows leave the model in its reasoning, odd ones in its answer."""
    words = [5 + (11 * row + 3 * i) % 400 for i in range(10)]
    return [THINK, *words] if row % 2 == 0 else words


class TestReport:
    def test_each_pool_has_the_limits_promised_and_keeps_its_bound(self, exchange: Exchange) -> None:
        for asked in exchange.asked:
            _, *promised = WISHES[asked.wish]
            assert asked.report["mode"] == "enforce"
            for name, limits in zip(PHASES, promised, strict=True):
                phase = asked.report["phases"][name]
                assert {key: phase[key] for key in Pool._fields} == limits._asdict(), WISHES[asked.wish]
                assert 0 <= phase["regret_spent"] <= phase["budget"]
            assert {key: asked.report[key] for key in Pool._fields} == promised[0]._asdict()

    def test_the_pools_add_up_to_the_request(self, exchange: Exchange) -> None:
        for asked in exchange.asked:
            report, pools = asked.report, asked.report["phases"].values()
            for key in ("regret_spent", "exceptions"):
                assert report[key] == sum(pool[key] for pool in pools), key
            exhausted = [p["exhausted_at_token"] for p in pools if p["exhausted_at_token"] is not None]
            assert report["exhausted_at_token"] == min(exhausted, default=None)

    def test_every_exception_is_in_the_pool_of_the_text_it_stands_in(self, exchange: Exchange) -> None:
        """The phase is followed through the answer itself, not through what the report says of it."""
        seen = dict.fromkeys(PHASES, 0)
        for asked in exchange.asked:
            for name in PHASES:
                phase, exceptions = asked.report["phases"][name], asked.exceptions_in(name)
                assert phase["exceptions"] == len(exceptions)
                seen[name] += len(exceptions)
                # A block that the end of the answer cut has paid for what it lost, too.
                spent = sum(entry["regret"] for entry in exceptions)
                assert spent <= phase["regret_spent"] * (1 + 1e-5)
                for entry in exceptions:
                    assert entry["regret"] <= phase["gate"] * entry["at_stake"] * (1 + 1e-5)
        assert min(seen.values()) > 10, seen

    @pytest.mark.parametrize(
        ("wish", "exhausted", "other"),
        [(REASONING_EXHAUSTED, "reasoning", "answer"), (ANSWER_EXHAUSTED, "answer", "reasoning")],
    )
    def test_an_exhausted_pool_leaves_the_others_exceptions_alone(
        self, exchange: Exchange, wish: int, exhausted: str, other: str
    ) -> None:
        behind = []
        for asked in exchange.asked:
            at = asked.report["phases"][exhausted]["exhausted_at_token"]
            if asked.wish == wish and at is not None:
                behind += asked.exceptions_in(other, behind=at)
        assert len(behind) > 5

    def test_streamed_the_last_chunk_has_the_same_phases(self, server: VllmServer) -> None:
        body = {"prompt": prompt_of(0), "max_tokens": 120, "vllm_xargs": {"asd_budget": 4.0}}
        whole = _complete(server, body)
        chunks = _stream(server, body)
        assert all(not chunk.get("metrics") for chunk in chunks[:-1])
        assert _report(chunks[-1]) == _report(whole)
        assert sum(phase["exceptions"] for phase in _report(whole)["phases"].values()) > 0

    def test_a_stop_string_ends_both_pools_accounts_in_the_middle(self, server: VllmServer) -> None:
        """Such a request's report comes from the engine in parts."""
        body = {"prompt": prompt_of(0), "max_tokens": 120}
        words = _complete(server, body)["choices"][0]["text"].split()[:100]
        body["stop"] = [max(words, key=words.index)]  # the last word to come up for the first time
        stopped = _complete(server, body)
        assert stopped["choices"][0]["finish_reason"] == "stop"
        report = _report(stopped)
        assert _report(_stream(server, body)[-1]) == report
        for key in ("regret_spent", "exceptions"):
            assert report[key] == sum(phase[key] for phase in report["phases"].values())


class TestStrict:
    def test_a_budget_of_zero_is_strict_in_both_phases(self, server: VllmServer) -> None:
        """One key does what naming both does; alone in the batch, so that nothing rounds otherwise."""
        relaxed_differs = False
        for row in range(4):
            body = {"prompt": prompt_of(row), "max_tokens": 120}
            one = _complete(server, body | {"vllm_xargs": {"asd_budget": 0}})
            both = _complete(server, body | {"vllm_xargs": {"asd_budget": 0, "asd_answer_budget": 0}})
            report = _report(one)
            assert (report["mode"], report["exceptions"], report["regret_spent"]) == ("strict", 0, 0)
            assert report == _report(both)
            assert [report["phases"][name]["budget"] for name in PHASES] == [0, 0]
            assert _token_ids(one) == _token_ids(both)
            relaxed_differs |= _token_ids(_complete(server, body)) != _token_ids(one)
        assert relaxed_differs


class TestCounters:
    def test_rise_by_what_the_reports_say_of_both_pools(self, exchange: Exchange) -> None:
        for name in COUNTERS:
            key = name.removesuffix("_total")
            recount = sum(asked.report[key] for asked in exchange.asked)
            grown = exchange.after.total(f"vllm_asd:{name}") - exchange.before.total(f"vllm_asd:{name}")
            assert recount > 0
            assert math.isclose(grown, recount, rel_tol=1e-9), name


class TestRefusals:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("xargs", "message"),
        [
            ({"asd_answer_budget": 20.5}, "asd_answer_budget=20.5 is laxer than this server allows"),
            ({"asd_answer_gate": 1.5}, "asd_answer_gate=1.5 is laxer than this server allows"),
            ({"asd_answer_block_cap": 4}, "asd_answer_block_cap=4 is laxer than this server allows"),
            ({"asd_answer_refill": 0.1}, "asd_answer_refill=0.1 is laxer than this server allows"),
            # The other pool's strictness buys nothing here.
            ({"asd_budget": 0, "asd_answer_budget": 21}, "send a value between 0 and 20.0"),
            ({"asd_answer_budget": -1}, "asd_answer_budget must be a finite number >= 0"),
        ],
    )
    def test_a_laxer_answer_is_a_400_that_names_the_key(
        self, server: VllmServer, xargs: dict[str, Any], message: str, stream: bool
    ) -> None:
        body = {"prompt": prompt_of(0), "max_tokens": 8}
        with pytest.raises(urllib.error.HTTPError) as refused:
            _open(server, body | {"vllm_xargs": xargs, "stream": stream})
        with refused.value as error:
            text = error.read().decode()
        assert error.code == 400, text
        assert message in text
        assert next(key for key in xargs if "answer" in key) in text
        assert _report(_complete(server, body))["mode"] == "enforce"


def test_without_a_reasoning_parser_the_start_is_refused(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """One line, the last, before anything is loaded."""
    config = speculation("draft_model", 4, tiny_llama_drafter_dir, scope="phases")
    args = [*ENGINE, "--speculative-config", json.dumps(config)]
    log_path = tmp_path / "server.log"
    with (
        pytest.raises(ServerDied, match="ended with status 1"),
        VllmServer(tiny_llama_dir, args, omp_threads=1, log_path=log_path),
    ):
        pass
    *_, last = log_path.read_text().splitlines()
    assert last == (
        "vllm-asd: error: asd_scope='phases' needs the model's think tokens: "
        "start vLLM with --reasoning-parser, or set asd_scope to 'all'"
    )


def _open(server: VllmServer, body: dict[str, Any]) -> Any:
    body = {"model": MODEL, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **body}
    request = urllib.request.Request(
        server.base_url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=300)


def _complete(server: VllmServer, body: dict[str, Any]) -> dict[str, Any]:
    with _open(server, body) as response:
        return dict(json.load(response))


def _stream(server: VllmServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    # vLLM sends metrics with the usage alone.
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with _open(server, body) as response:
        lines = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _token_ids(response: dict[str, Any]) -> list[int]:
    return list(response["choices"][0]["token_ids"])


def _report(response: dict[str, Any]) -> dict[str, Any]:
    return dict(response["metrics"]["speculative_decoding"]["asd"])


def _settled(server: VllmServer) -> Metrics:
    """The metrics once no request runs and two readings agree."""
    last: list[float] = []
    for _ in range(100):
        metrics = server.metrics()
        now = [metrics.total(f"vllm_asd:{name}") for name in COUNTERS]
        if now == last and metrics.total("vllm:num_requests_running") == 0:
            return metrics
        last = now
        time.sleep(0.2)
    raise AssertionError("the counters do not come to rest")
