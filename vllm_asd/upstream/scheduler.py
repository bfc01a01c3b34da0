"""Engine core: the worker's block reports meet the requests they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_asd.config import AsdConfig
from vllm_asd.telemetry.request_report import RequestReport
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.upstream import early_report, way_back, wire
from vllm_asd.upstream.engine_args import asd_config_of
from vllm_asd.upstream.patching import APPLIED, Patch
from vllm_asd.upstream.scheduled import is_greedy, limits_of

SCHEDULER_INIT = Patch(
    target="vllm.v1.core.sched.scheduler:Scheduler.__init__",
    parameters=(
        "self",
        "vllm_config",
        "kv_cache_config",
        "structured_output_manager",
        "block_size",
        "hash_block_size",
        "mm_registry",
        "include_finished_set",
        "log_stats",
    ),
    why="--scheduler-cls would do, but it holds one class, which the user may need, and switches "
    "vLLM's own choice of the async scheduler off",
    remove_when="SchedulerStats can be extended by plugins",
    process="engine core",
)

UPDATE_FROM_OUTPUT = Patch(
    target="vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
    parameters=("self", "scheduler_output", "model_runner_output"),
    why="the one place that sees the worker's output and the request it belongs to",
    remove_when="SchedulerStats can be extended by plugins",
    process="engine core",
    instance=True,
    hot=True,
)

ADD_REQUEST = Patch(
    target="vllm.v1.core.sched.scheduler:Scheduler.add_request",
    parameters=("self", "request"),
    why="a request's report begins with it, so that a strict request has one too",
    remove_when="SchedulerStats can be extended by plugins",
    process="engine core",
    instance=True,
    hot=True,
)

FREE_REQUEST = Patch(
    target="vllm.v1.core.sched.scheduler:Scheduler._free_request",
    parameters=("self", "request", "delay_free_blocks"),
    why="every request ends here, whether it finished, failed or was aborted",
    remove_when="SchedulerStats can be extended by plugins",
    process="engine core",
    instance=True,
    hot=True,
)


def install() -> None:
    """Apply the patch; it looks at the configuration once and does nothing while ASD is not asked for."""
    APPLIED.apply(SCHEDULER_INIT, _wrap_init)


def _wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        config = asd_config_of(self.vllm_config)
        if config is not None:
            wire.install()
            attach(self, config)

    return __init__


def attach(scheduler: Any, config: AsdConfig) -> None:
    """Give a scheduler its reports and, unless the server runs without statistics, its counters."""
    counters = StepCounters(config.asd_mode == "shadow") if scheduler.log_stats else None
    ADD_REQUEST.bind(scheduler, lambda add: _wrap_add_request(scheduler, config, add))
    UPDATE_FROM_OUTPUT.bind(scheduler, lambda update: _wrap_update(scheduler, counters, update))
    if counters is not None:
        FREE_REQUEST.bind(scheduler, lambda free: _wrap_free_request(counters, free))


def _wrap_add_request(scheduler: Any, config: AsdConfig, original: Callable[..., Any]) -> Callable[..., Any]:
    detailed = scheduler.spec_decode_metrics_level == "detailed"

    def add_request(request: Any) -> Any:
        result = original(request)
        params = request.sampling_params
        limits = None if params is None else limits_of(config, params)
        if limits is not None:
            request.asd_report = RequestReport(limits, detailed, sampled=not is_greedy(params))
            if request.spec_decode_metrics is not None:
                request.spec_decode_metrics.asd = request.asd_report.payload
        return result

    return add_request


def _wrap_free_request(counters: StepCounters, original: Callable[..., Any]) -> Callable[..., Any]:
    def free_request(request: Any, delay_free_blocks: bool = False) -> Any:
        report = getattr(request, "asd_report", None)
        if report is not None:
            counters.end(report)
        return original(request, delay_free_blocks)

    return free_request


def _wrap_update(
    scheduler: Any, counters: StepCounters | None, original: Callable[..., Any]
) -> Callable[..., Any]:
    reports = scheduler.spec_decode_metrics_level != "none"

    def update_from_output(scheduler_output: Any, model_runner_output: Any) -> Any:
        blocks = way_back.received(model_runner_output)
        before = [
            (request, request.num_output_tokens, block)
            for request_id, block in blocks.items()
            if (request := scheduler.requests.get(request_id)) is not None and not request.is_finished()
        ]
        outputs = original(scheduler_output, model_runner_output)
        for request, position, block in before:
            # A streaming-input session keeps the report, or none, that its first chunk's parameters gave it.
            report: RequestReport | None = getattr(request, "asd_report", None)
            if report is None:
                continue
            was_exhausted, was_guarded = report.is_exhausted, report.is_guarded
            tally = report.observe(block, position, request.output_token_ids[position:])
            if counters is not None and tally is not None and counters.counts(report):
                counters.add(tally)
                if report.is_exhausted and not was_exhausted:
                    counters.add_exhausted()
                if report.is_guarded and not was_guarded:
                    counters.add_guarded()
        if reports:
            _send_early(scheduler, outputs)
        if counters is not None:
            _hand_over(counters, outputs)
        return outputs

    return update_from_output


def _send_early(scheduler: Any, outputs: Any) -> None:
    """Send the news of requests with stop strings, which end in the front end, with every step."""
    for output in outputs.values():
        for item in output.outputs:
            request = scheduler.requests.get(item.request_id)
            if request is not None and request.sampling_params is not None and request.sampling_params.stop:
                item.spec_decode_metrics = early_report.take_part(request)


def _hand_over(counters: StepCounters, outputs: Any) -> None:
    """Put the step's increments on the statistics, which vLLM sends to one of the front ends."""
    for output in outputs.values():
        if output.scheduler_stats is not None:
            output.scheduler_stats.asd = counters.take()
            return
