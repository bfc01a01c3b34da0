"""Latency, acceptance and memory, arm by arm."""

from collections.abc import Sequence
from typing import Any

from vllm_asd.tools.bench.cells import ASD
from vllm_asd.tools.bench.markdown.tables import NAMES, cells, table


def latency(report: dict[str, Any]) -> str:
    """Percentiles, a row for each server, arm and concurrency."""
    head = ["server", "arm", "at a time"]
    head += [f"{title} p50 / p95 / p99" for title in ("TTFT", "TPOT", "end to end")] + ["ITL p50 / p99"]
    rows = []
    for server, arm, level, cell in cells(report):
        latency = cell["latency_ms"]
        row = [server, NAMES[arm], level]
        for name in ("ttft", "tpot", "e2e"):
            row.append(" / ".join(f"{latency[name][p]:.0f}" for p in ("p50", "p95", "p99")))
        row.append(" / ".join(f"{latency['itl'][p]:.0f}" for p in ("p50", "p99")))
        rows.append(row)
    return table(head, rows)


def acceptance(report: dict[str, Any], servers: Sequence[str]) -> str:
    """Tokens per round, and what was relaxed; empty without a drafter."""
    rows = []
    for server, arm, level, cell in cells(report):
        found = cell["acceptance"]
        if found is None:
            continue
        positions = " ".join(f"{value:.2f}" for value in found["by_position"])
        regret = "-"
        if arm == ASD:
            per_100 = 100 * found["exceptions"] / found["generated"]
            regret = f"{per_100:.1f}; {found['regret'] / cell['requests']:.2f}"
        drafted = f"{found['drafted']:.0%}"
        rows.append(
            [server, NAMES[arm], level, f"{found['tokens_per_round']:.2f}", positions, drafted, regret]
        )
    if not servers or not rows:
        return ""
    head = [
        "server",
        "arm",
        "at a time",
        "tokens per round",
        "kept at least that far, by position",
        "rounds with a draft",
        "exceptions per 100 tokens; nats per request",
    ]
    return f"## Acceptance\n\n{table(head, rows)}"


def memory(report: dict[str, Any]) -> str:
    """Peak memory by server, over all its cells."""
    rows = []
    for server, arms in report["arms"].items():
        cells = [cell for arm in arms.values() for cell in arm.values()]
        if cells:
            resident = max(cell["memory_mib"]["resident"] for cell in cells)
            gpu = [cell["memory_mib"]["gpu"] for cell in cells if cell["memory_mib"]["gpu"] is not None]
            preempted = sum(cell["preemptions"] for cell in cells)
            rows.append([server, f"{resident:.0f}", f"{max(gpu):.0f}" if gpu else "-", f"{preempted:.0f}"])
    head = ["server", "processes, resident MiB", "GPU MiB, whole device", "preemptions"]
    return f"## Peak memory\n\n{table(head, rows)}"
