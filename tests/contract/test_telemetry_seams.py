"""What telemetry asks of the installed vLLM: its records travel, its loggers take one more."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from prometheus_client import CollectorRegistry
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.policy import StopReason
from vllm_asd.telemetry import prometheus
from vllm_asd.telemetry.block_tally import BlockTally
from vllm_asd.telemetry.request_report import RequestReport
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import BlockException, BlockReport
from vllm_asd.upstream import scheduler, stat_logger, way_back, wire
from vllm_asd.upstream.engine_args import CONFIG_KEY
from vllm_asd.upstream.patching import APPLIED, Patch

RECORDS = [
    value
    for module in (scheduler, stat_logger, wire)
    for value in vars(module).values()
    if isinstance(value, Patch)
]
BLOCK = BlockReport(5, 3, 1, 1, StopReason.GATE, 0.5, 0.5, False, (BlockException(1, 9, 0.5),))


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
    counters.add(BlockTally.of(BLOCK, num_emitted=4))
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
    """As much of vLLM's as the seam touches; a step emits four tokens and ends the request."""

    def __init__(self, log_stats: bool) -> None:
        self.log_stats = log_stats
        self.spec_decode_metrics_level = "detailed"
        self.requests: dict[str, Any] = {}

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> tuple[None, bool]:
        del self.requests[request.request_id]
        return None, delay_free_blocks

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        for request in list(self.requests.values()):
            request.output_token_ids += scheduler_output
            self._free_request(request)
        stats = SimpleNamespace(asd=None) if self.log_stats else None
        return {
            client: SimpleNamespace(scheduler_stats=stats if client else None, outputs=[])
            for client in (0, 1)
        }


class _Request:
    def __init__(self, temperature: float = 0.0) -> None:
        self.request_id = "a"
        self.sampling_params = SimpleNamespace(temperature=temperature, extra_args=None)
        self.spec_decode_metrics = SimpleNamespace(asd=None)
        self.output_token_ids = [1, 2]

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    def is_finished(self) -> bool:
        return False


def attached(log_stats: bool = True) -> Any:
    made = _Scheduler(log_stats)
    counters = StepCounters() if log_stats else None
    # Instance patches of the real class are bound in `attach`; here the functions are put on by hand.
    made.add_request = scheduler._wrap_add_request(made, AsdConfig(), made.add_request)  # type: ignore[method-assign]
    if counters is not None:
        made._free_request = scheduler._wrap_free_request(counters, made._free_request)  # type: ignore[method-assign]
    made.update_from_output = scheduler._wrap_update(  # type: ignore[method-assign]
        made, counters, made.update_from_output
    )
    return made


class TestScheduler:
    def test_a_requests_last_block_is_in_its_report_and_in_the_counters(self) -> None:
        made, request = attached(), _Request()
        made.add_request(request)
        output = SimpleNamespace()
        setattr(output, way_back.ATTRIBUTE, {"a": BLOCK})
        stats = made.update_from_output([7, 8, 9, 9], output)[1].scheduler_stats
        report = request.spec_decode_metrics.asd
        assert report["exception_trace"][0]["position"] == 3
        assert report["exception_trace"][0]["token_id"] == 8
        assert (stats.asd["exceptions"], stats.asd["request_regret"]) == (1, [0.5])

    def test_who_only_looks_is_not_counted_where_others_are_relaxed(self) -> None:
        made, request = attached(), _Request()
        request.sampling_params.extra_args = {"asd_mode": "shadow"}
        made.add_request(request)
        output = SimpleNamespace()
        setattr(output, way_back.ATTRIBUTE, {"a": BLOCK._replace(shadow=True)})
        stats = made.update_from_output([7, 8, 9, 9], output)[1].scheduler_stats
        assert request.spec_decode_metrics.asd["exceptions"] == 1
        assert stats.asd is None

    def test_an_aborted_request_is_counted_with_the_next_step(self) -> None:
        made, request = attached(), _Request()
        made.add_request(request)
        made._free_request(request)
        stats = made.update_from_output([], SimpleNamespace())[1].scheduler_stats
        assert stats.asd["request_regret"] == [0.0]

    def test_sampled_requests_have_no_report(self) -> None:
        made, request = attached(), _Request(temperature=0.7)
        made.add_request(request)
        assert request.spec_decode_metrics.asd is None
        assert made.update_from_output([5], SimpleNamespace())[1].scheduler_stats.asd is None

    def test_a_session_that_turns_greedy_does_not_end_the_engine(self) -> None:
        made, request = attached(), _Request(temperature=0.7)
        made.add_request(request)
        # Streaming input: vLLM gives the request that is there the parameters of its next chunk.
        request.sampling_params = SimpleNamespace(temperature=0.0, extra_args=None)
        output = SimpleNamespace()
        setattr(output, way_back.ATTRIBUTE, {"a": BLOCK})
        assert made.update_from_output([7, 8, 9, 9], output)[1].scheduler_stats.asd is None

    def test_without_statistics_the_report_is_there_all_the_same(self) -> None:
        made, request = attached(log_stats=False), _Request()
        made.add_request(request)
        output = SimpleNamespace()
        setattr(output, way_back.ATTRIBUTE, {"a": BLOCK})
        made.update_from_output([7, 8, 9, 9], output)
        assert request.spec_decode_metrics.asd["exceptions"] == 1


def test_a_strict_requests_regret_is_not_observed() -> None:
    counters = StepCounters()
    counters.end(RequestReport(RequestLimits(0, 0, 0), detailed=False))
    assert counters.take() is None
