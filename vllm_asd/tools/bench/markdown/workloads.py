"""Work that is not fixed: answers that end by themselves, and a trace."""

from typing import Any

from vllm_asd.tools.bench.markdown.tables import NAMES, table


def other_work(report: dict[str, Any], work: str, title: str) -> str:
    """One kind of work, "natural" or "trace", under its title; empty if it was not measured."""
    rows = []
    arrivals = None
    for server, arms in report["other"][work].items():
        for arm, cell in arms.items():
            arrivals = cell["arrivals"] or arrivals
            latency = cell["latency_ms"]
            ratio = cell.get("duration_ratio")
            row = [
                server,
                NAMES[arm],
                f"{cell['throughput']:.1f}",
                f"{cell['output_tokens_per_answer']:.1f}",
            ]
            row += [
                " / ".join(f"{latency[n][p]:.0f}" for p in ("p50", "p99")) for n in ("ttft", "tpot", "e2e")
            ]
            rows.append([*row, "-" if ratio is None else f"{ratio:.2f}"])
    if not rows:
        return ""
    head = ["server", "arm", "tokens/s", "tokens per answer"]
    head += ["TTFT p50 / p99", "TPOT p50 / p99", "end to end p50 / p99", "time / strict's"]
    note = (
        f"{report['levels'][-1]} at a time, at most {report['settings']['max_tokens']} tokens, one triplet."
    )
    if arrivals is not None:
        note = (
            f"{len(arrivals['output_tokens'])} requests at {arrivals['rate']:.2f} per second, "
            f"{arrivals['factor']:.3g} times slower than the trace; gaps drawn from a gamma distribution "
            f"with the trace's mean and spread (shape {arrivals['burstiness']:.2f}), output lengths in the "
            "trace's proportions, prompts matched to its input lengths by rank. One triplet."
        )
    return f"{title}\n\n{note}\n\n{table(head, rows)}"
