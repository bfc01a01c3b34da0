"""The counters of ``/metrics`` as JSON."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from vllm_asd.telemetry.prometheus import PREFIX, collect

_HISTOGRAM_PARTS = ("_count", "_sum")


def counters_by_engine(registry: CollectorRegistry) -> dict[str, Any]:
    """Read a registry.

    Returns:
        By engine index: each counter's value, ``blocks`` by what ended them, ``request_regret`` with count
        and sum, and ``gain_over_strict``: how many more tokens a block yielded than strict verification of
        the same drafts, as a fraction (None before the first block).
    """
    engines: dict[str, dict[str, Any]] = {}
    for metric in collect(registry):
        name = metric.name.removeprefix(PREFIX)
        for sample in metric.samples:
            engine = engines.setdefault(sample.labels["engine"], {"model_name": sample.labels["model_name"]})
            if metric.type == "histogram":
                for part in _HISTOGRAM_PARTS:
                    if sample.name == metric.name + part:
                        engine.setdefault(name, {})[part[1:]] = sample.value
            elif "stop" in sample.labels:
                if sample.name.endswith("_total"):
                    engine.setdefault(name, {})[sample.labels["stop"]] = sample.value
            elif sample.name in (metric.name, f"{metric.name}_total"):
                engine[name] = sample.value
    for engine in engines.values():
        engine["gain_over_strict"] = _gain(engine)
    return engines


def _gain(engine: dict[str, Any]) -> float | None:
    blocks = sum(engine.get("blocks", {}).values())
    if not blocks:
        return None
    return float((engine["accepted_tokens"] + blocks) / (engine["strict_accepted_tokens"] + blocks) - 1)
