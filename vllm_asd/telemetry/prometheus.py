"""The counters on ``/metrics``, in the process that serves it.

The collectors are made once per process and kept: vLLM may build its own loggers again (a second engine,
elastic scaling), and a counter that starts over would lose what it counted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram, Metric
from prometheus_client import Counter as Collector

from vllm_asd.telemetry.block_tally import STOP_LABELS
from vllm_asd.telemetry.counters import Counter

# Not "vllm:": vLLM unregisters such collectors, and `vllm bench serve` adds up every vllm:spec_decode line.
PREFIX = "vllm_asd:"
LABELS = ("model_name", "engine")
REGRET_BUCKETS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)

_SHADOW_NOTE = " On a server in asd_mode 'shadow': what would have been kept."


class Collectors:
    """All metrics of the prefix ``vllm_asd:``, labelled by model and engine."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register the collectors; once per registry."""
        self._enabled = Gauge(
            f"{PREFIX}enabled",
            "1 while the engine verifies with ASD.",
            LABELS,
            multiprocess_mode="mostrecent",
            registry=registry,
        )
        self._counters = {
            counter.label: Collector(
                PREFIX + counter.label, counter.text + _SHADOW_NOTE, LABELS, registry=registry
            )
            for counter in Counter
        }
        self._blocks = Collector(
            f"{PREFIX}blocks",
            "Verification blocks that ASD decided, by what ended them.",
            (*LABELS, "stop"),
            registry=registry,
        )
        self._request_regret = Histogram(
            f"{PREFIX}request_regret",
            "Regret of a finished or aborted request that ASD decided, in nats." + _SHADOW_NOTE,
            LABELS,
            buckets=REGRET_BUCKETS,
            registry=registry,
        )

    def enable(self, model_name: str, engine: int) -> None:
        """Show an engine's series, all at zero, before its first block."""
        labels = (model_name, str(engine))
        self._enabled.labels(*labels).set(1)
        for counter in self._counters.values():
            counter.labels(*labels)
        for stop in STOP_LABELS:
            self._blocks.labels(*labels, stop)
        self._request_regret.labels(*labels)

    def observe(self, counts: Mapping[str, Any], model_name: str, engine: int) -> None:
        """Add what :meth:`StepCounters.take` handed over."""
        labels = (model_name, str(engine))
        for name, counter in self._counters.items():
            counter.labels(*labels).inc(counts[name])
        for stop, blocks in counts["blocks"].items():
            self._blocks.labels(*labels, stop).inc(blocks)
        for regret in counts["request_regret"]:
            self._request_regret.labels(*labels).observe(regret)


@functools.cache
def collectors() -> Collectors:
    """This process's collectors, registered on first use."""
    return Collectors()


def collect(registry: CollectorRegistry = REGISTRY) -> Iterable[Metric]:
    """Read the metrics of the prefix ``vllm_asd:`` out of a registry."""
    return (metric for metric in registry.collect() if metric.name.startswith(PREFIX))
