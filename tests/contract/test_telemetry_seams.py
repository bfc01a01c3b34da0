"""What telemetry asks of the installed vLLM: its records travel, its loggers take one more."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import numpy as np
from prometheus_client import CollectorRegistry
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics, SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.property.step_blocks import make_blocks
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.telemetry import prometheus
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import StepBlocks
from vllm_asd.upstream import early_report, scheduler, stat_logger, way_back, wire
from vllm_asd.upstream.engine_args import CONFIG_KEY
from vllm_asd.upstream.patching import APPLIED, Patch

RECORDS = [
    value
    for module in (scheduler, early_report, stat_logger, wire)
    for value in vars(module).values()
    if isinstance(value, Patch)
]


def block(**columns: Any) -> StepBlocks:
    """One block of request "a": three of five drafts kept, the second an exception for half a nat."""
    return make_blocks(["a"], [{1: 0.5}], num_draft=5, accepted=3, **columns)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    registry = CollectorRegistry()
    ours = prometheus.Collectors(registry)
    monkeypatch.setattr(stat_logger, "collectors", lambda: ours)
    monkeypatch.setattr(stat_logger, "collect", lambda: prometheus.collect(registry))
    return registry


@pytest.fixture
def wired() -> Iterator[None]:
    was_applied = wire.TO_DICT in APPLIED
    wire.install()
    yield
    if not was_applied:
        APPLIED.undo_all()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.target)
def test_the_targets_are_what_the_records_expect(record: Patch) -> None:
    record.check()


def counts() -> dict[str, Any]:
    counters = StepCounters()
    reports = OpenReports(False, counters)
    reports.open("a", RequestLimits(8.0, 0.25, 2))
    reports.observe(block(), np.array([0]), {"a": [7, 8, 9, 9]})
    return counters.take() or {}


@pytest.mark.usefixtures("wired")
def test_the_steps_counts_travel_with_vllms_statistics() -> None:
    stats: Any = SchedulerStats(num_running_reqs=3)
    stats.asd = counts()
    encoded = MsgpackEncoder().encode(EngineCoreOutputs(scheduler_stats=stats))
    decoded: Any = MsgpackDecoder(EngineCoreOutputs).decode(encoded).scheduler_stats
    assert (decoded.num_running_reqs, decoded.asd) == (3, counts())


@pytest.mark.usefixtures("wired")
def test_statistics_without_counts_travel_as_before() -> None:
    encoded = MsgpackEncoder().encode(EngineCoreOutputs(scheduler_stats=SchedulerStats()))
    decoded: Any = MsgpackDecoder(EngineCoreOutputs).decode(encoded).scheduler_stats
    assert decoded.asd is None


def manager(config: AsdConfig | None, **arguments: Any) -> Any:
    """What vLLM's manager becomes, its own loggers left out."""

    def original(self: Any, *_: Any) -> None:
        self.stat_loggers, self.engine_indexes = [], [0, 1]

    made = SimpleNamespace()
    additional = {} if config is None else {CONFIG_KEY: config.model_dump()}
    vllm_config = SimpleNamespace(
        additional_config=additional, model_config=SimpleNamespace(served_model_name="m")
    )
    stat_logger._wrap_init(original)(made, vllm_config, **arguments)
    return made


class TestStatLogger:
    def test_is_not_there_and_registers_nothing_without_asd(self, registry: CollectorRegistry) -> None:
        assert manager(None).stat_loggers == []
        assert not any(metric.samples for metric in registry.collect())

    def test_counts_by_engine(self, registry: CollectorRegistry) -> None:
        (ours,) = manager(AsdConfig()).stat_loggers
        ours.record(SimpleNamespace(asd=counts()), None, engine_idx=1)
        ours.record(SimpleNamespace(asd=None), None, engine_idx=1)
        ours.record(None, None, engine_idx=0)
        labels = {"model_name": "m", "engine": "1"}
        assert registry.get_sample_value("vllm_asd:exceptions_total", labels) == 1
        assert registry.get_sample_value("vllm_asd:exceptions_total", {**labels, "engine": "0"}) == 0

    @pytest.mark.parametrize(
        ("arguments", "lines"),
        [({}, 1), ({"enable_default_loggers": False}, 0), ({"client_count": 2}, 0)],
    )
    def test_logs_where_vllm_logs(
        self,
        registry: CollectorRegistry,
        monkeypatch: pytest.MonkeyPatch,
        arguments: dict[str, Any],
        lines: int,
    ) -> None:
        written: list[str] = []
        monkeypatch.setattr(stat_logger.logger, "info", written.append)
        (ours,) = manager(AsdConfig(), **arguments).stat_loggers
        ours.record(SimpleNamespace(asd=counts()), None)
        ours.log()
        ours.log()
        assert len(written) == lines

    def test_has_all_that_vllm_calls(self, registry: CollectorRegistry) -> None:
        (ours,) = manager(AsdConfig()).stat_loggers
        ours.log_engine_initialized()
        ours.record_sleep_state(1, 0)
        ours.record_admission_rejection("max_num_queued_reqs")

    def test_llm_get_metrics_shows_fractions_of_nats(self, registry: CollectorRegistry) -> None:
        (ours,) = manager(AsdConfig()).stat_loggers
        ours.record(SimpleNamespace(asd={**counts(), "request_regret": [0.5]}), None, engine_idx=0)
        snapshot = stat_logger._wrap_get_metrics(lambda _engine: ["theirs"])(None)
        assert snapshot[0] == "theirs"
        found = {
            metric.name: metric
            for metric in snapshot[1:]
            if metric.labels.get("engine") == "0" and metric.labels.get("stop", "gate") == "gate"
        }
        assert found["vllm_asd:regret"].value == 0.5
        assert found["vllm_asd:blocks"].value == 1
        assert found["vllm_asd:enabled"].value == 1
        histogram = found["vllm_asd:request_regret"]
        assert (histogram.count, histogram.sum, histogram.buckets["0.25"]) == (1, 0.5, 0)


class _Scheduler:
    """As much of vLLM's as the seam touches; a step emits the tokens it is given and ends the request."""

    def __init__(self, log_stats: bool, level: str = "detailed") -> None:
        self.log_stats = log_stats
        self.spec_decode_metrics_level = level
        self.requests: dict[str, Any] = {}

    def add_request(self, request: Any) -> None:
        if request.request_id not in self.requests:
            self.requests[request.request_id] = request
            if self.spec_decode_metrics_level != "none":
                request.spec_decode_metrics = RequestSpecDecodeMetrics.new(5)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return SimpleNamespace(new_token_ids=[])

    def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool = False) -> None:
        request.drop_stale_output = drop_stale_output

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> tuple[None, bool]:
        del self.requests[request.request_id]
        return None, delay_free_blocks

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        items = []
        for request in list(self.requests.values()):
            tokens = scheduler_output.new_token_ids
            request.output_token_ids += tokens
            self._free_request(request)
            items.append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=tokens,
                    finish_reason=FinishReason.LENGTH,
                    spec_decode_metrics=request.spec_decode_metrics,
                )
            )
        stats = SimpleNamespace(asd=None) if self.log_stats else None
        return {
            client: SimpleNamespace(scheduler_stats=stats if client else None, outputs=items * client)
            for client in (0, 1)
        }


class _Request:
    def __init__(self, temperature: float = 0.0) -> None:
        self.request_id = "a"
        self.sampling_params = SimpleNamespace(temperature=temperature, extra_args=None, stop=None)
        self.spec_decode_metrics: Any = None
        self.output_token_ids = [1, 2]
        self.num_in_flight_tokens = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    def is_finished(self) -> bool:
        return False


def attached(log_stats: bool = True, level: str = "detailed") -> Any:
    made: Any = _Scheduler(log_stats, level)
    core = scheduler.Core(made, AsdConfig())
    # Instance patches of the real class are bound in `Core.bind`; here the functions are put on by hand.
    made.schedule = core.wrap_schedule(made.schedule)
    made.add_request = core.wrap_add_request(made.add_request)
    made._free_request = core.wrap_free_request(made._free_request)
    made.update_from_output = core.wrap_update(made.update_from_output)
    return made


def step(made: Any, new_token_ids: list[int], blocks: StepBlocks | None = None) -> Any:
    """One step, its statistics returned."""
    schedule = made.schedule()
    schedule.new_token_ids = new_token_ids
    output = SimpleNamespace(req_ids=["a"], sampled_token_ids=[list(new_token_ids)])
    if blocks is not None:
        setattr(output, way_back.ATTRIBUTE, blocks)
    return made.update_from_output(schedule, output)[1].scheduler_stats


@pytest.mark.usefixtures("wired")
class TestScheduler:
    def test_a_requests_last_block_is_in_its_report_and_in_the_counters(self) -> None:
        made, request = attached(), _Request()
        made.add_request(request)
        stats = step(made, [7, 8, 9, 9], block())
        report = request.spec_decode_metrics.asd
        assert report["exception_trace"][0]["position"] == 3
        assert report["exception_trace"][0]["token_id"] == 8
        assert (stats.asd["exceptions"], stats.asd["request_regret"]) == (1, [0.5])

    def test_who_only_looks_is_not_counted_where_others_are_relaxed(self) -> None:
        made, request = attached(), _Request()
        request.sampling_params.extra_args = {"asd_mode": "shadow"}
        made.add_request(request)
        stats = step(made, [7, 8, 9, 9], block(shadow=1))
        assert request.spec_decode_metrics.asd["exceptions"] == 1
        assert stats.asd is None

    def test_an_aborted_request_is_counted_with_the_next_step(self) -> None:
        made, request = attached(), _Request()
        made.add_request(request)
        made._free_request(request)
        assert step(made, []).asd["request_regret"] == [0.0]

    def test_sampled_requests_have_no_report(self) -> None:
        made, request = attached(), _Request(temperature=0.7)
        made.add_request(request)
        assert step(made, [5]).asd is None
        assert request.spec_decode_metrics.asd is None

    def test_a_session_that_turns_greedy_does_not_end_the_engine(self) -> None:
        made, request = attached(), _Request(temperature=0.7)
        made.add_request(request)
        # Streaming input: vLLM gives the request that is there the parameters of its next chunk.
        made.add_request(_Request())
        request.sampling_params = SimpleNamespace(temperature=0.0, extra_args=None, stop=None)
        assert step(made, [7, 8, 9, 9], block()).asd is None

    def test_without_statistics_the_report_is_there_all_the_same(self) -> None:
        made, request = attached(log_stats=False), _Request()
        made.add_request(request)
        step(made, [7, 8, 9, 9], block())
        assert request.spec_decode_metrics.asd["exceptions"] == 1

    def test_without_reports_the_counters_are_there_all_the_same(self) -> None:
        made, request = attached(level="none"), _Request()
        made.add_request(request)
        assert step(made, [7, 8, 9, 9], block()).asd == {**counts(), "request_regret": [0.5]}

    def test_what_nobody_reads_is_not_added_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        observed: list[Any] = []
        monkeypatch.setattr(OpenReports, "observe", lambda *arguments: observed.append(arguments))
        made, request = attached(log_stats=False, level="none"), _Request()
        made.add_request(request)
        step(made, [7, 8, 9, 9], block())
        assert observed == []
