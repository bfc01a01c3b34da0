"""All that a run has shown, as one JSON document."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from vllm_asd.tools.bench.acceptance import acceptance
from vllm_asd.tools.bench.cells import ASD, NONE, SHADOW, STRICT
from vllm_asd.tools.bench.compare import against_plain, against_strict, changes, drift
from vllm_asd.tools.bench.load import PERCENTILES
from vllm_asd.tools.bench.prediction import predictions, timing
from vllm_asd.tools.bench.results import Record, Results, pooled, summed
from vllm_asd.tools.bench.settings import Settings
from vllm_asd.tools.provenance import provenance, without_folders

SCHEMA = "vllm-asd/bench/1"


def build_report(
    settings: Settings, results: Results, profiles: dict[str, dict[str, Any]], notes: list[str]
) -> dict[str, Any]:
    """Put the report together from what is finished.

    Args:
        settings: Of the run.
        results: Its cells.
        profiles: By server, from `vllm_asd.tools.bench.profile`.
        notes: What could not be measured, and why.

    Returns:
        schema: "vllm-asd/bench/1".
        provenance: Command, commit, versions, day.
        settings: What was asked; folders shortened.
        notes: What could not be measured, and why.
        levels: Concurrencies.
        arms: By server, arm and concurrency: `speedup` over none, `ratio` to strict (each with median, range,
            quartiles, values), `throughput` (tokens/s, pooled), `latency_ms`, `acceptance`, `memory_mib`,
            `timing`, `cells` (how many repeats).
        changes: Every figure of strict and ASD against its control, with a verdict.
        drift: Last control over first.
        other: Natural ends and the trace, by work, server and arm.
        profile: Parts of a decode step, by server.
        prediction: The planner's, beside what was measured.
    """
    servers = [NONE, *results.speculating]
    return {
        "schema": SCHEMA,
        "provenance": provenance(("vllm-asd", "bench")),
        "settings": without_folders(settings.as_json()),
        "notes": notes,
        "levels": results.concurrency,
        "arms": {server: _arms(results, server) for server in servers},
        "changes": [change.as_json() for change in changes(results)],
        "drift": drift(results),
        "other": {
            work: {server: _other(results, server, settings.concurrency[-1], work) for server in servers}
            for work in ("natural", "trace")
        },
        "profile": profiles,
        "prediction": [item.as_json() for item in predictions(results, draft_costs(results, profiles))],
    }


def draft_costs(results: Results, profiles: dict[str, dict[str, Any]]) -> dict[str, float]:
    """One draft token in plain decode steps, by server: the draft's share of a profiled strict step, scaled.

    At the smallest batch, and only where profile, strict and no speculation were all measured there.
    """
    found: dict[str, float] = {}
    for server, profile in profiles.items():
        size, arms = next(iter(profile["by_batch"].items()))
        plain, strict = results.plain(int(size)), results.of(server, STRICT, int(size))
        if plain and strict:
            step = arms[STRICT]["mean_ms"]
            share = step["draft"] / step["step"]
            found[server] = share * timing(strict).itl_ms / timing(plain).itl_ms / profile["k"]
    return found


def _arms(results: Results, server: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for arm in results.arms(server):
        for concurrency in results.concurrency:
            records = results.of(server, arm, concurrency)
            if records:
                cell = {**_speeds(results, server, arm, concurrency), **_figures(records)}
                found.setdefault(arm, {})[str(concurrency)] = cell
    return found


def _speeds(results: Results, server: str, arm: str, concurrency: int) -> dict[str, Any]:
    speedup = against_plain(results, server, arm, concurrency)
    ratio = against_strict(results, server, arm, concurrency) if arm in (ASD, SHADOW) else None
    return {"speedup": speedup and speedup.as_json(), "ratio": ratio and ratio.as_json()}


def _figures(records: list[Record]) -> dict[str, Any]:
    accepted = acceptance(records)
    gpu = [record["memory_mib"]["gpu"] for record in records if record["memory_mib"]["gpu"] is not None]
    itl = {
        key: _mean(record["latency_ms"]["itl"][key] for record in records) for key in ("mean", "p50", "p99")
    }
    return {
        "cells": len(records),
        "throughput": summed(records, "output_tokens") / summed(records, "duration_s"),
        "requests": int(summed(records, "completed")),
        "latency_ms": {
            **{name: _percentiles(records, f"{name}_ms") for name in ("ttft", "tpot", "e2e")},
            "itl": itl,
        },
        "acceptance": accepted and accepted.as_json(),
        "memory_mib": {
            "resident": max(record["memory_mib"]["resident"] for record in records),
            "gpu": max(gpu) if gpu else None,
        },
        "timing": vars(timing(records)),
        "step_ms": 1e3 * summed(records, "duration_s") / summed(records, "counters", "steps"),
        "preemptions": summed(records, "counters", "preemptions"),
    }


def _percentiles(records: list[Record], name: str) -> dict[str, float]:
    values = pooled(records, name)
    return {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES} | {"mean": float(values.mean())}


def _other(results: Results, server: str, concurrency: int, work: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm in (NONE, STRICT, ASD):
        records = results.of(server, arm, concurrency, work)
        if records:
            found[arm] = {
                **_figures(records),
                "output_tokens_per_answer": float(pooled(records, "output_lengths").mean()),
                "arrivals": records[0]["arrivals"],
            }
    for triplet in results.triplets(server, ASD, concurrency, work):
        before, measured, after = (record["duration_s"] for record in triplet)
        found[ASD]["duration_ratio"] = measured / ((before + after) / 2)
    return found


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def read_profiles(folder: Path, servers: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The profiles that are there."""
    paths = {server: folder / f"profile-{server}.json" for server in servers}
    return {server: json.loads(path.read_text()) for server, path in paths.items() if path.exists()}
