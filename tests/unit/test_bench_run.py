"""The order of a bench run, and that it loses nothing and repeats nothing."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest

from tests.unit.bench_records import bench_serve_result, make_settings
from vllm_asd.tools.bench.cells import ASD, FLY, NONE, SHADOW, STRICT, plan_visits
from vllm_asd.tools.bench.client import BenchClient
from vllm_asd.tools.bench.fly import fly_config
from vllm_asd.tools.bench.run import Runner, server_arguments
from vllm_asd.tools.bench.settings import BenchError, read_speculations
from vllm_asd.tools.bench.store import Store
from vllm_asd.tools.bench.workload import match_lengths, read_trace, scale_trace
from vllm_asd.tools.server import Metrics, ServerDied
from vllm_asd.tools.usage import BadUsage


class FakeServer:
    """Counts one step and nine tokens per reading."""

    base_url = "http://127.0.0.1:1"
    start_s = 0.0
    starts: list[list[str]]

    def __init__(self, _model: str, args: Sequence[str], *, log_path: Path, **_: Any) -> None:
        self.log_path = log_path
        self.args = list(args)
        self._readings = 0

    def __enter__(self) -> Self:
        if '"fly"' in self.args[-1]:
            raise ServerDied("vllm serve ended. The end of its log:\nValueError: no fly today")
        FakeServer.starts.append(self.args)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def process_ids(self) -> list[int]:
        return []

    def metrics(self) -> Metrics:
        self._readings += 1
        return Metrics.parse(
            f"vllm:iteration_tokens_total_count {self._readings}\n"
            f"vllm:generation_tokens_total {9 * self._readings}\n"
        )


class FakeClient:
    """Writes a result per measurement; Ctrl-C comes at the chosen one."""

    measured: list[list[str]]
    interrupt_at: int | None = None

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, arguments: list[str]) -> None:
        given = dict(pairwise(arguments))
        warm_up = given["--custom-output-len"] != "9"
        if not warm_up:
            if len(self.measured) == self.interrupt_at:
                raise KeyboardInterrupt
            FakeClient.measured.append(arguments)
        folder = Path(given["--result-dir"])
        (folder / given["--result-filename"]).write_text(json.dumps(bench_serve_result()))


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeServer.starts, FakeClient.measured, FakeClient.interrupt_at = [], [], None
    monkeypatch.setattr("vllm_asd.tools.bench.run._SETTLE_S", 0)
    monkeypatch.setattr("vllm_asd.tools.bench.run._WARM_UP_TOKENS", 3)


def run(folder: Path, fly: Sequence[str] = (), **changes: Any) -> Runner:
    settings = make_settings(**changes)
    fakes: Any = {"server": FakeServer, "client": FakeClient}
    runner = Runner(settings, Store(folder, settings), ["one", "two", "three"], fly=fly, **fakes)
    runner.run()
    return runner


def test_an_interrupted_run_goes_on_and_measures_each_cell_once(tmp_path: Path) -> None:
    FakeClient.interrupt_at = 9
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert len(list((tmp_path / "cells").glob("*.json"))) == 9
    FakeClient.interrupt_at = None
    runner = run(tmp_path)
    assert len(FakeClient.measured) == len(runner.cells)
    starts = len(FakeServer.starts)
    run(tmp_path)
    assert len(FakeServer.starts) == starts


def test_more_repeats_add_to_what_is_there_and_other_settings_are_refused(tmp_path: Path) -> None:
    first = run(tmp_path)
    more = run(tmp_path, repeats=3)
    assert len(FakeClient.measured) == len({*first.cells, *more.cells})
    with pytest.raises(BadUsage, match="was begun with max_tokens=9, not 10: give the same"):
        run(tmp_path, max_tokens=10)


def test_every_relaxed_cell_lies_between_two_strict_ones(tmp_path: Path) -> None:
    order = [c for v in plan_visits(make_settings(repeats=3)) for c in v.cells if c.concurrency == 4]
    fixed = [cell for cell in order if cell.server == "ngram" and cell.work == "fixed"]
    arms = [cell.arm for cell in fixed]
    assert arms == [STRICT, ASD, SHADOW, STRICT, SHADOW, ASD, STRICT, ASD, SHADOW, STRICT]
    assert len(set(order)) == len(order)


def test_the_plain_server_is_measured_before_and_after_and_fly_between() -> None:
    visits = plan_visits(make_settings(), fly=["ngram"])
    assert [visit.server for visit in visits] == [NONE, "ngram", f"ngram-{FLY}", NONE]
    repeats = Counter(cell for visit in visits for cell in visit.cells)
    assert set(repeats.values()) == {1}


def test_a_vllm_that_refuses_fly_does_not_cost_the_rest(tmp_path: Path) -> None:
    runner = run(tmp_path, fly=["ngram"])
    assert runner.notes == [
        "vLLM's own lossy method `fly` is not measured as ngram-fly: ValueError: no fly today"
    ]
    measured = [cell for cell in runner.cells if (tmp_path / "cells" / f"{cell.name}.json").exists()]
    assert {cell.server for cell in measured} == {NONE, "ngram"}
    assert len(measured) == len(FakeClient.measured)


@pytest.mark.parametrize(("k", "window"), [(5, 4), (7, None)])
def test_flys_window_is_shorter_than_the_draft_and_our_keys_are_gone(k: int, window: int | None) -> None:
    text = json.dumps({"method": "eagle3", "model": "h", "num_speculative_tokens": k, "asd_gate": 0.5})
    config = fly_config(read_speculations([text], None, None, 5)[0])
    assert config.pop("fly_window_size", None) == window
    assert config == {"method": "eagle3", "num_speculative_tokens": k, "rejection_sample_method": "fly"}


def test_servers_differ_in_nothing_but_speculation_and_arms_in_nothing_but_xargs(tmp_path: Path) -> None:
    settings = make_settings()
    plain = server_arguments(settings, NONE)
    speculating = server_arguments(settings, "ngram")
    assert speculating[: len(plain)] == plain
    assert speculating[len(plain)] == "--speculative-config"
    assert "--no-enable-prefix-caching" in plain
    run(tmp_path)
    bodies = {argument for call in FakeClient.measured for argument in call if "vllm_xargs" in argument}
    assert {json.dumps(json.loads(body)["vllm_xargs"]) for body in bodies} == {
        '{"asd_budget": 0}',
        '{"asd_mode": "shadow"}',
    }


def test_a_trace_keeps_its_shape_and_takes_the_machines_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0.0, 100, 50), (1.0, 900, 200), (5.0, 300, 100)]
    lines = [
        json.dumps({"prompt": "", "meta": {"arrival_s": at, "input_tokens": inp, "output_tokens": out}})
        for at, inp, out in rows
    ]
    path.write_text("\n".join(lines))
    trace = read_trace(path, 10)
    found = scale_trace(trace, max_tokens=20, tokens_per_s=70.0, load=0.5)
    assert found.output_tokens == (5, 20, 10)
    assert found.rate * sum(found.output_tokens) / 3 == pytest.approx(35)
    assert match_lengths(["a" * 9, "a", "a" * 5], trace) == ["a", "a" * 9, "a" * 5]


CHILD = """
import json, sys
print("{}", flush=True)
for line in sys.stdin:
    if "die" in line:
        sys.exit("out of memory")
    print(json.dumps({"error": "ValueError: no"} if "fail" in line else {}), flush=True)
"""


def test_the_load_generator_reports_failures_and_its_own_end(tmp_path: Path) -> None:
    with BenchClient(tmp_path / "log", {}, (sys.executable, "-c", CHILD)) as client:
        client.run(["fine"])
        with pytest.raises(BenchError, match="ValueError: no"):
            client.run(["fail"])
        client.run(["fine"])
        with pytest.raises(BenchError, match="out of memory"):
            client.run(["die"])
