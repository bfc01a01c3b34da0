"""The whole report, section by section."""

from typing import Any

from vllm_asd.tools.bench.cells import NONE
from vllm_asd.tools.bench.markdown.costs import prediction, step
from vllm_asd.tools.bench.markdown.figures import acceptance, latency, memory
from vllm_asd.tools.bench.markdown.speed import changes, drift, speed
from vllm_asd.tools.bench.markdown.summary import conditions, in_short, warning
from vllm_asd.tools.bench.markdown.workloads import other_work


def to_markdown(report: dict[str, Any]) -> str:
    """Write the whole report."""
    servers = [server for server in report["arms"] if server != NONE]
    parts = [
        "# Speed under load\n",
        *(in_short(report, server) for server in servers),
        warning(report),
        conditions(report),
        "![Speed-up by concurrency](speedup.png)\n",
        *(speed(report, server) for server in servers),
        changes(report),
        "## Latency, ms\n\n![Latency distributions](latency.png)\n",
        latency(report),
        acceptance(report, servers),
        step(report),
        memory(report),
        other_work(report, "natural", "## Answers that end by themselves"),
        other_work(report, "trace", "## Arrivals and lengths from a trace"),
        prediction(report),
        drift(report),
    ]
    return "\n".join(part for part in parts if part)
