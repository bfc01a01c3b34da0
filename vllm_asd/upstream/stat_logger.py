"""Front end: the counters of each step reach ``/metrics``, the log and ``LLM.get_metrics``.

vLLM's entry point group ``vllm.stat_logger_plugins`` is not used: a plugin found there overrides
``--disable-log-stats`` and adds three log lines at INFO whether or not ASD is on, is not loaded for
``LLM``, and is dropped when an engine is scaled. This patch exists only where ASD is on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from vllm_asd.telemetry.log_line import IntervalLog
from vllm_asd.telemetry.prometheus import collect, collectors
from vllm_asd.upstream.engine_args import asd_config_of
from vllm_asd.upstream.patching import APPLIED, Patch

logger = logging.getLogger("vllm.vllm_asd")

STAT_LOGGERS = Patch(
    target="vllm.v1.metrics.loggers:StatLoggerManager.__init__",
    parameters=(
        "self",
        "vllm_config",
        "engine_idxs",
        "custom_stat_loggers",
        "enable_default_loggers",
        "aggregate_engine_logging",
        "client_count",
    ),
    why="the entry point group vllm.stat_logger_plugins overrides --disable-log-stats and writes to the log "
    "while ASD is off, and does not reach LLM",
    remove_when="stat logger plugins may decline to be loaded, and LLM loads them",
    process="front end",
)

GET_METRICS = Patch(
    target="vllm.v1.engine.llm_engine:LLMEngine.get_metrics",
    parameters=("self",),
    why="it leaves out every metric whose name does not begin with vllm:",
    remove_when="it asks for names by more than one prefix",
    process="front end",
)


def install() -> None:
    """Apply the patches in this process."""
    APPLIED.apply(STAT_LOGGERS, _wrap_init)
    APPLIED.apply(GET_METRICS, _wrap_get_metrics)


def metrics_registry() -> Any:
    """The registry behind ``/metrics``; with several API servers it adds all of them up."""
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    return get_prometheus_registry()


def _wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(
        self: Any,
        vllm_config: Any,
        engine_idxs: Any = None,
        custom_stat_loggers: Any = None,
        enable_default_loggers: bool = True,
        aggregate_engine_logging: bool = False,
        client_count: int = 1,
    ) -> None:
        original(
            self,
            vllm_config,
            engine_idxs,
            custom_stat_loggers,
            enable_default_loggers,
            aggregate_engine_logging,
            client_count,
        )
        # Another engine in this process may run without ASD.
        if asd_config_of(vllm_config) is not None:
            # As vLLM does it: one of several API servers sees a part of the steps, so none logs.
            logs = enable_default_loggers and client_count <= 1
            self.stat_loggers.append(_make_logger(vllm_config, self.engine_indexes, logs))

    return __init__


def _make_logger(vllm_config: Any, engine_indexes: list[int], logs: bool) -> Any:
    # Imported late: this module must not pull vLLM's engine into a process that only parses arguments.
    from vllm.v1.metrics.loggers import AggregateStatLoggerBase

    class AsdStatLogger(AggregateStatLoggerBase):
        """Observes ``SchedulerStats.asd`` of every engine that this front end talks to."""

        def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
            self._model_name = vllm_config.model_config.served_model_name
            self._interval = IntervalLog()
            for engine in engine_indexes:
                collectors().enable(self._model_name, engine)

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,  # noqa: ARG002 (vLLM's signature)
            mm_cache_stats: Any = None,  # noqa: ARG002
            engine_idx: int = 0,
        ) -> None:
            counts = None if scheduler_stats is None else scheduler_stats.asd
            if counts is not None:
                collectors().observe(counts, self._model_name, engine_idx)
                self._interval.observe(counts)

        def log(self) -> None:
            line = self._interval.take()
            if logs and line is not None:
                logger.info(line)

        def log_engine_initialized(self) -> None:
            pass

    return AsdStatLogger(vllm_config, engine_indexes)


def _wrap_get_metrics(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_metrics(self: Any) -> list[Any]:
        return [*original(self), *(entry for metric in collect() for entry in _entries(metric))]

    return get_metrics


def _entries(metric: Any) -> list[Any]:
    """Turn a metric into vLLM's own records; a counter keeps its fraction, since regret is in nats."""
    from vllm.v1.metrics import reader

    if metric.type == "histogram":
        by_suffix = {
            suffix: [s for s in metric.samples if s.name == f"{metric.name}_{suffix}"]
            for suffix in ("bucket", "count", "sum")
        }
        digest = reader._digest_histogram(*by_suffix.values())
        return [
            reader.Histogram(name=metric.name, labels=labels, buckets=buckets, count=count, sum=total)
            for labels, buckets, count, total in digest
        ]
    record = reader.Gauge if metric.type == "gauge" else reader.Counter
    suffix = "" if metric.type == "gauge" else "_total"
    return [
        record(name=metric.name, labels=sample.labels, value=sample.value)
        for sample in metric.samples
        if sample.name == metric.name + suffix
    ]
