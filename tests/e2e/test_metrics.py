"""One server, everything that ASD tells about itself: counters, per-request reports, log, routes.

The tiny Llama is random: its drafter disagrees often, by little, so that exceptions are plenty.
"""

import json
import math
import random
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import prometheus
from vllm_asd.tools.server import Metrics, VllmServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_MIXED = 200
MODEL = "tiny"
COUNTERS = {
    "exceptions_total": "exceptions",
    "regret_total": "regret",
    "reused_tokens_total": "reused_tokens",
    "accepted_tokens_total": "accepted_tokens",
    "strict_accepted_tokens_total": "strict_accepted_tokens",
}


class Client:
    """Asks one server."""

    def __init__(self, server: VllmServer) -> None:
        self.server = server

    def open(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.server.base_url + path,
            data=json.dumps({"model": MODEL, "temperature": 0, **body}).encode(),
            headers={"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=120)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.open(path, body) as response:
            return dict(json.load(response))

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        # vLLM sends metrics with the usage alone.
        body = {"stream": True, "stream_options": {"include_usage": True}, **body}
        with self.open(path, body) as response:
            lines = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def complete(self, num_tokens: int = 40, seed: int = 0, **more: Any) -> dict[str, Any]:
        body = {"prompt": prompt(seed), "max_tokens": num_tokens, "ignore_eos": True}
        return self.post("/v1/completions", {**body, "return_token_ids": True, **more})

    def settled(self) -> Metrics:
        """The metrics once no request runs and two readings agree."""
        last: dict[str, float] = {}
        for _ in range(100):
            metrics = self.server.metrics()
            now = {name: metrics.total(f"vllm_asd:{name}") for name in COUNTERS}
            if now == last and metrics.total("vllm:num_requests_running") == 0:
                return metrics
            last = now
            time.sleep(0.2)
        raise AssertionError("the counters do not come to rest")


def prompt(seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(5, 512) for _ in range(generator.randrange(4, 60))]


def report_of(response: dict[str, Any]) -> dict[str, Any]:
    return dict(response["metrics"]["speculative_decoding"]["asd"])


@pytest.fixture(scope="module")
def client(
    tiny_llama_dir: Path, tiny_llama_drafter_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    speculative = {
        "method": "draft_model",
        "model": str(tiny_llama_drafter_dir),
        "num_speculative_tokens": 5,
        "rejection_sample_method": "asd",
        "asd_budget": 4.0,
    }
    args = ["--speculative-config", json.dumps(speculative), "--served-model-name", MODEL]
    args += ["--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "16", "--dtype", "float32"]
    args += ["--per-request-spec-decode-metrics", "detailed"]
    # Room for half of what sixteen long requests need, so that some are preempted.
    args += ["--block-size", "32", "--num-gpu-blocks-override", "36", "--no-enable-prefix-caching"]
    log_path = tmp_path_factory.mktemp("metrics") / "server.log"
    environment = {"VLLM_PLUGINS": "asd", "VLLM_LOG_STATS_INTERVAL": "1"}
    with VllmServer(
        tiny_llama_dir, args, omp_threads=2, environment=environment, log_path=log_path
    ) as server:
        yield Client(server)


@pytest.fixture(scope="module")
def scraper(
    client: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[prometheus.Prometheus | None]:
    """A Prometheus that watches from the first test on; None where it isn't installed."""
    if not prometheus.installed():
        yield None
        return
    with prometheus.scraping(client.server.port, tmp_path_factory.mktemp("prometheus")) as running:
        yield running


def mixed_request(client: Client, index: int) -> dict[str, Any]:
    """One request of a kind that depends on its index; the response's metrics."""
    wishes: list[dict[str, Any]] = [
        {},
        {"asd_budget": 0},
        {"asd_mode": "shadow"},
        {"asd_budget": 0.5},
        {"asd_gate": 0.05, "asd_block_cap": 1, "asd_guard": "on"},
    ]
    body: dict[str, Any] = {"max_tokens": 20 + index % 90, "vllm_xargs": wishes[index % 5]}
    if index % 5 == 4:
        # With so few words it loops.
        body["allowed_token_ids"] = list(range(20, 24))
    if index % 11 == 0:
        body["temperature"] = 0.8
    if index % 2:
        body |= {"prompt": prompt(index), "ignore_eos": index % 3 == 0}
        path = "/v1/completions"
    else:
        words = " ".join(f"t{token}" for token in prompt(index))
        body |= {"messages": [{"role": "user", "content": words}]}
        path = "/v1/chat/completions"
    if index % 3 == 0:
        return dict(client.stream(path, body)[-1]["metrics"]["speculative_decoding"])
    return dict(client.post(path, body)["metrics"]["speculative_decoding"])


def abort_some(client: Client) -> None:
    """Begin to read four streams and hang up."""
    for seed in range(4):
        body = {"prompt": prompt(seed), "max_tokens": 400, "ignore_eos": True, "stream": True}
        with client.open("/v1/completions", body) as response:
            response.readline()


class TestCounters:
    def test_equal_a_recount_from_the_reports_of_mixed_requests(
        self, client: Client, scraper: prometheus.Prometheus | None
    ) -> None:
        abort_some(client)
        before = client.settled()
        assert before.total("vllm_asd:request_regret_count") == 4
        with ThreadPoolExecutor(24) as pool:
            metrics = list(pool.map(lambda index: mixed_request(client, index), range(NUM_MIXED)))
        after = client.settled()

        def grown(name: str, **labels: str) -> float:
            return after.total(name, **labels) - before.total(name, **labels)

        reports = [entry["asd"] for entry in metrics if "asd" in entry]
        sampled = NUM_MIXED - len(reports)
        assert sampled == len(range(0, NUM_MIXED, 11))
        # Who asks for shadow on a server that enforces keeps nothing, and is not counted.
        reports = [report for report in reports if report["mode"] != "shadow"]
        for name, key in COUNTERS.items():
            recount = sum(report[key] for report in reports)
            assert recount > 0
            assert math.isclose(grown(f"vllm_asd:{name}"), recount, rel_tol=1e-9), name
        stops: Counter[str] = Counter()
        for report in reports:
            stops.update(report["blocks_by_stop"])
        for stop, blocks in stops.items():
            assert grown("vllm_asd:blocks_total", stop=stop) == blocks, stop
        exhausted = sum(report.get("exhausted_at_token") is not None for report in reports)
        assert grown("vllm_asd:exhausted_requests_total") == exhausted > 0
        guarded = sum(report["guarded_at_token"] is not None for report in reports)
        assert grown("vllm_asd:guarded_requests_total") == guarded > 0
        lossy = [report for report in reports if report["mode"] != "strict"]
        assert grown("vllm_asd:request_regret_count") == len(lossy)
        assert math.isclose(
            grown("vllm_asd:request_regret_sum"), sum(report["regret"] for report in lossy), rel_tol=1e-9
        )
        assert grown("vllm:num_preemptions_total") > 0
        # vLLM's own stay consistent, and hold the blocks that ASD left alone as well.
        accepted = grown("vllm:spec_decode_num_accepted_tokens_total")
        assert accepted <= grown("vllm:spec_decode_num_draft_tokens_total")
        assert grown("vllm:spec_decode_num_drafts_total") > sum(stops.values())

    def test_carry_vllms_labels(self, client: Client) -> None:
        (sample,) = client.server.metrics().samples("vllm_asd:enabled")
        assert (sample.labels["model_name"], sample.labels["engine"], sample.value) == (MODEL, "0", 1)

    def test_do_not_begin_like_vllms(self, client: Client) -> None:
        names = client.server.metrics().names()
        assert not any("asd" in name for name in names if name.startswith("vllm:"))

    def test_the_log_tells_the_gain(self, client: Client) -> None:
        client.complete(num_tokens=200)
        time.sleep(2.5)
        lines = [line for line in client.server.log_tail(400).splitlines() if "ASD metrics:" in line]
        assert lines
        assert "gain: +" in lines[0]


class TestReport:
    def test_holds_the_bound_and_names_the_limits_in_force(self, client: Client) -> None:
        report = report_of(client.complete(vllm_xargs={"asd_budget": 0.5, "asd_block_cap": 1}))
        assert (report["mode"], report["budget"], report["block_cap"]) == ("enforce", 0.5, 1)
        assert 0 < report["regret"] <= report["regret_spent"] <= 0.5
        assert report["exhausted_at_token"] is not None

    def test_a_strict_request_reports_that_nothing_was_relaxed(self, client: Client) -> None:
        report = report_of(client.complete(vllm_xargs={"asd_budget": 0}))
        assert (report["mode"], report["exceptions"], report["exception_trace"]) == ("strict", 0, [])

    def test_the_trace_names_tokens_of_the_response(self, client: Client) -> None:
        response = client.complete(num_tokens=60, logprobs=1)
        choice, report = response["choices"][0], report_of(response)
        assert len(report["exception_trace"]) == report["exceptions"] > 0
        for entry in report["exception_trace"]:
            assert choice["token_ids"][entry["position"]] == entry["token_id"] != entry["target_token_id"]
            logprob = choice["logprobs"]["token_logprobs"][entry["position"]]
            assert math.isclose(entry["logprob"], logprob, abs_tol=1e-4)
            assert math.isclose(entry["target_logprob"] - entry["logprob"], entry["regret"], abs_tol=1e-6)
        total = sum(entry["regret"] for entry in report["exception_trace"])
        assert math.isclose(total, report["regret"])

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    def test_is_the_same_when_streamed(self, client: Client, path: str) -> None:
        body: dict[str, Any] = {"max_tokens": 50, "ignore_eos": True}
        if "chat" in path:
            body["messages"] = [{"role": "user", "content": "t7 t8 t9"}]
        else:
            body["prompt"] = prompt(3)
        streamed = client.stream(path, body)
        assert all(not chunk.get("metrics") for chunk in streamed[:-1])
        assert report_of(streamed[-1]) == report_of(client.post(path, body))

    @pytest.mark.parametrize("wishes", [{}, {"asd_budget": 0}])
    def test_is_there_when_a_stop_string_ends_the_request(
        self, client: Client, wishes: dict[str, Any]
    ) -> None:
        """The front end finds stop strings, after the engine has gone on; the report comes in parts."""
        whole = client.complete(num_tokens=90, vllm_xargs=wishes)
        stop = whole["choices"][0]["text"].split()[60]
        stopped = client.complete(num_tokens=90, vllm_xargs=wishes, stop=[stop])
        assert stopped["choices"][0]["finish_reason"] == "stop"
        body = {"prompt": prompt(0), "max_tokens": 90, "ignore_eos": True, "stop": [stop]}
        streamed = client.stream("/v1/completions", {**body, "vllm_xargs": wishes})[-1]
        found, of_stream, longer = (r["metrics"]["speculative_decoding"] for r in (stopped, streamed, whole))
        assert of_stream == found
        assert found["asd"]["mode"] == ("strict" if wishes else "enforce")
        # As the report of the same answer without a stop; vLLM's own figures end with a whole block.
        assert 5 < len(found["per_step_accepted"]) == found["num_spec_steps"] < longer["num_spec_steps"]
        assert found["per_step_accepted"] == longer["per_step_accepted"][: found["num_spec_steps"]]
        assert found["per_step_drafted"] == longer["per_step_drafted"][: found["num_spec_steps"]]
        trace = found["asd"]["exception_trace"]
        assert len(trace) == found["asd"]["exceptions"]
        # The block in which the string was found is cut there.
        num_tokens = stopped["usage"]["completion_tokens"]
        assert all(entry["position"] < num_tokens for entry in trace)
        assert found["asd"]["accepted_tokens"] < num_tokens
        behind = longer["asd"]["exception_trace"][len(trace) :]
        assert all(entry["position"] >= num_tokens for entry in behind)
        assert trace == longer["asd"]["exception_trace"][: len(trace)]
        assert bool(trace) != bool(wishes)

    def test_is_in_responses_as_in_a_chat(self, client: Client) -> None:
        """The route's `metrics` are vLLM's own field, which it leaves empty."""
        chat = {"messages": [{"role": "user", "content": "t7 t8 t9"}], "max_tokens": 50}
        expected = client.post("/v1/chat/completions", chat)["metrics"]["speculative_decoding"]
        assert expected["asd"]["exceptions"] > 0
        body = {"input": "t7 t8 t9", "max_output_tokens": 50}
        assert client.post("/v1/responses", body)["metrics"]["speculative_decoding"] == expected
        with client.open("/v1/responses", {**body, "stream": True}) as stream:
            events = [line[6:] for line in stream.read().decode().splitlines() if line.startswith("data: ")]
        assert json.loads(events[-1])["response"]["metrics"]["speculative_decoding"] == expected


class TestRoutes:
    def test_counters_are_those_of_metrics(self, client: Client) -> None:
        metrics = client.settled()
        counters = json.loads(client.server.get("/plugins/asd/counters"))["0"]
        for name, key in COUNTERS.items():
            assert counters[key] == metrics.total(f"vllm_asd:{name}")
        assert counters["gain_over_strict"] > 0

    def test_status_and_limits_are_the_servers(self, client: Client) -> None:
        assert json.loads(client.server.get("/plugins/asd/status"))["mode"] == "enforce"
        limits = json.loads(client.server.get("/plugins/asd/limits"))
        assert (limits["asd_budget"], limits["asd_gate"]) == (4.0, 0.25)


class TestShadow:
    def test_emits_what_budget_zero_emits_and_says_what_it_would_have_kept(self, client: Client) -> None:
        for seed in range(8):
            strict = client.complete(seed=seed, num_tokens=80, vllm_xargs={"asd_budget": 0})
            shadow = client.complete(seed=seed, num_tokens=80, vllm_xargs={"asd_mode": "shadow"})
            assert shadow["choices"][0]["token_ids"] == strict["choices"][0]["token_ids"]
            report = report_of(shadow)
            assert report["mode"] == "shadow"
            assert report["accepted_tokens"] > report["strict_accepted_tokens"]

    def test_first_exception_is_where_an_enforced_run_leaves_strict(self, client: Client) -> None:
        """Up to there the drafts are the same, so what shadow foresees is what enforcing does."""
        for seed in range(8):
            shadow = client.complete(seed=seed, num_tokens=80, vllm_xargs={"asd_mode": "shadow"})
            enforced = client.complete(seed=seed, num_tokens=80)
            foreseen, done = (report_of(r)["exception_trace"][0] for r in (shadow, enforced))
            assert (foreseen["position"], foreseen["target_token_id"]) == (
                done["position"],
                done["target_token_id"],
            )
            assert math.isclose(foreseen["regret"], done["regret"], rel_tol=1e-3, abs_tol=1e-4)


class TestDashboard:
    def test_no_panels_query_is_empty(self, scraper: prometheus.Prometheus | None) -> None:
        if scraper is None:
            pytest.skip("no prometheus on this machine")
        dashboard = json.loads(
            (prometheus.ROOT / "configs" / "grafana" / "dashboards" / "vllm_asd.json").read_text()
        )
        targets = [
            (panel["title"], target["expr"])
            for panel in dashboard["panels"]
            for target in panel.get("targets", [])
        ]
        for title, expression in targets:
            # `All`, and a range that spans the whole run.
            expression = re.sub(r"\$(job|model_name|instance|engine)", ".*", expression)
            series = scraper.query(expression.replace("$__rate_interval", "5m"))
            values = [float(entry["value"][1]) for entry in series]
            print(f"{title}: {values}")
            assert values, title
            assert all(math.isfinite(value) for value in values), title
