"""What the sections have in common: tables, spreads, the arms' names."""

from collections.abc import Iterable, Sequence
from typing import Any

from vllm_asd.tools.bench.cells import ASD, FLY, NONE, SHADOW, STRICT

NAMES = {NONE: "no speculation", STRICT: "strict", ASD: "ASD", SHADOW: "shadow", FLY: "vLLM's fly"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def spread(found: dict[str, Any] | None) -> str:
    """`1.23 (1.20-1.26)`, or a dash."""
    if found is None:
        return "-"
    if len(found["values"]) == 1:
        return f"{found['median']:.2f}"
    return f"{found['median']:.2f} ({found['min']:.2f}-{found['max']:.2f})"


def cells(report: dict[str, Any]) -> Iterable[tuple[str, str, str, dict[str, Any]]]:
    """Server, arm, concurrency and figures of each measurement on fixed work."""
    for server, arms in report["arms"].items():
        for arm, levels in arms.items():
            for level, cell in levels.items():
                yield server, arm, level, cell
