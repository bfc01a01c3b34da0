"""Engine core: the worker's decisions meet their requests, and the worker learns what was kept of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vllm_asd.config import AsdConfig
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import StepBlocks
from vllm_asd.upstream import way_back, wire
from vllm_asd.upstream.early_report import EarlyReports, copy_metrics
from vllm_asd.upstream.engine_args import asd_config_of
from vllm_asd.upstream.kept_tokens import KeptTokens
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

SCHEDULE = Patch(
    target="vllm.v1.core.sched.scheduler:Scheduler.schedule",
    parameters=("self", "throttle_prefills"),
    why="each schedule tells the worker which of its tokens were kept",
    remove_when="vLLM tells the worker which output it discarded",
    process="engine core",
    instance=True,
    hot=True,
)

PREEMPT_REQUEST = Patch(
    target="vllm.v1.core.sched.scheduler:Scheduler._preempt_request",
    parameters=("self", "request", "timestamp", "drop_stale_output"),
    why="the one place that knows that the output of steps in flight will be dropped",
    remove_when="vLLM tells the worker which output it discarded",
    process="engine core",
    instance=True,
    hot=True,
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
    """Give a scheduler its notices, its reports and, unless the server has no statistics, its counters."""
    scheduler.asd_core = Core(scheduler, config)
    scheduler.asd_core.bind()


class Core:
    """What ASD does around one scheduler."""

    def __init__(self, scheduler: Any, config: AsdConfig) -> None:
        """Look at what is to be reported; nothing is patched yet."""
        self._scheduler = scheduler
        self._config = config
        level = scheduler.spec_decode_metrics_level
        self._counters = StepCounters() if scheduler.log_stats else None
        self._kept = KeptTokens()
        self._sends_reports = level != "none"
        self.reports = OpenReports(level == "detailed", self._counters, config.asd_mode == "shadow")
        self._early = EarlyReports(self.reports)

    def bind(self) -> None:
        """Apply the patches to the scheduler."""
        SCHEDULE.bind(self._scheduler, self.wrap_schedule)
        PREEMPT_REQUEST.bind(self._scheduler, self.wrap_preempt_request)
        ADD_REQUEST.bind(self._scheduler, self.wrap_add_request)
        UPDATE_FROM_OUTPUT.bind(self._scheduler, self.wrap_update)
        FREE_REQUEST.bind(self._scheduler, self.wrap_free_request)

    def wrap_schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Send the notice along."""

        def schedule(throttle_prefills: bool = False) -> Any:
            scheduler_output = original(throttle_prefills)
            self._kept.announce(scheduler_output)
            return scheduler_output

        return schedule

    def wrap_preempt_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Take the steps in flight back, where vLLM drops them."""

        def preempt_request(request: Any, timestamp: float, drop_stale_output: bool = False) -> None:
            original(request, timestamp, drop_stale_output)
            self._kept.preempted(request)

        return preempt_request

    def wrap_add_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Begin a report."""

        def add_request(request: Any) -> Any:
            result = original(request)
            # The next chunk of a streaming-input session is no request of its own.
            if self._scheduler.requests.get(request.request_id) is request and self._is_reported:
                self._open(request)
            return result

        return add_request

    @property
    def _is_reported(self) -> bool:
        return self._sends_reports or self._counters is not None

    def _open(self, request: Any) -> None:
        params = request.sampling_params
        if params is None:
            return
        limits = limits_of(self._config, params)
        if limits is not None:
            self.reports.open(request.request_id, limits, sampled=not is_greedy(params))
        if self._sends_reports and params.stop:
            self._early.follow(request)

    def wrap_free_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """End a report, and what there was to say to the worker."""

        def free_request(request: Any, delay_free_blocks: bool = False) -> Any:
            self._kept.forget(request.request_id)
            self.reports.close(request.request_id)
            self._early.end(request.request_id)
            return original(request, delay_free_blocks)

        return free_request

    def wrap_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Add the step's blocks up, and see what was kept of it."""

        def update_from_output(scheduler_output: Any, model_runner_output: Any) -> Any:
            # Before vLLM cuts the lists of tokens in place, and begins a session's next chunk.
            sampled = model_runner_output.sampled_token_ids or []
            num_generated = dict(zip(model_runner_output.req_ids, map(len, sampled), strict=False))
            blocks = way_back.received(model_runner_output) if self._is_reported else None
            positions = None if blocks is None else self._positions(blocks)
            outputs = original(scheduler_output, model_runner_output)
            items = [item for output in outputs.values() for item in output.outputs]
            kept = {item.request_id: item.new_token_ids for item in items if item.new_token_ids}
            ended = [item for item in items if item.finish_reason is not None]
            self._kept.commit(
                scheduler_output,
                num_generated,
                kept,
                self._scheduler.requests,
                [item.request_id for item in ended],
            )
            if blocks is not None and positions is not None:
                self.reports.observe(blocks, positions, kept, self._early.cuttable(kept))
            if self._sends_reports:
                self._send(ended, items)
            self.reports.settle()
            self._hand_over(outputs)
            return outputs

        return update_from_output

    def _positions(self, blocks: StepBlocks) -> np.ndarray:
        """[M] int64: output tokens of each request before the step, of those that a report needs."""
        positions = np.zeros(len(blocks.request_ids), np.int64)
        if self._sends_reports:
            requests = self._scheduler.requests
            every = range(len(positions))
            for row in every if self._early else self.reports.located(blocks):
                request = requests.get(blocks.request_ids[row])
                positions[row] = 0 if request is None else request.num_output_tokens
        return positions

    def _send(self, ended: list[Any], items: list[Any]) -> None:
        """Fill the reports in that leave with this step."""
        for item in ended:
            metrics = item.spec_decode_metrics
            if metrics is not None and item.request_id not in self._early:
                if item.request_id in self._scheduler.requests:
                    # A session goes on, while another thread encodes what is sent.
                    metrics = item.spec_decode_metrics = copy_metrics(metrics)
                metrics.asd = self.reports.report(item.request_id)
        self._early.send(items)

    def _hand_over(self, outputs: Any) -> None:
        """Put the step's increments on the statistics, which vLLM sends to one of the front ends."""
        for output in outputs.values():
            if self._counters is not None and output.scheduler_stats is not None:
                output.scheduler_stats.asd = self._counters.take()
                return
