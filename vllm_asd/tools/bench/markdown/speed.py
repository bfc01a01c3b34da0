"""Speed-ups, what got worse and what got better, and how far the controls drifted."""

from collections.abc import Sequence
from typing import Any

from vllm_asd.tools.bench.cells import ASD, FLY, NONE, SHADOW, STRICT
from vllm_asd.tools.bench.markdown.tables import NAMES, spread, table

_ORDER = (STRICT, ASD, SHADOW, FLY)


def speed(report: dict[str, Any], server: str) -> str:
    """One server's speed-ups by concurrency."""
    arms, plain = report["arms"][server], report["arms"][NONE].get(NONE, {})
    present = [arm for arm in _ORDER if arm in arms]
    head = ["at a time", "no speculation, tokens/s"]
    head += [f"{NAMES[arm]} / none" for arm in present] + ["ASD / strict", "shadow / strict"]
    rows = []
    for level in map(str, report["levels"]):
        row = [level, f"{plain[level]['throughput']:.1f}" if level in plain else "-"]
        row += [spread(arms[arm].get(level, {}).get("speedup")) for arm in present]
        row += [spread(arms.get(arm, {}).get(level, {}).get("ratio")) for arm in (ASD, SHADOW)]
        rows.append(row)
    note = (
        "Ratios of output tokens per second: median (range over repeats). Against strict each is taken "
        "within its own triplet. Shadow emits what strict emits, so shadow / strict is the cost of deciding."
    )
    return f"## {server}: speed-up\n\n{table(head, rows)}\n{note}\n"


def changes(report: dict[str, Any]) -> str:
    """Every figure against its control, with what is worse in bold."""
    lines = ["## What got worse, and what got better\n"]
    pairs = ((ASD, STRICT), (ASD, NONE), (STRICT, NONE))
    for arm, against in pairs:
        for server in (name for name in report["arms"] if name != NONE):
            found = [
                change
                for change in report["changes"]
                if (change["server"], change["arm"], change["against"]) == (server, arm, against)
            ]
            if found:
                lines.append(f"### {server}: {NAMES[arm]} against {NAMES[against]}\n")
                lines.append(_verdicts(found, report["levels"]))
    lines.append(
        "Ratio to the control, median over repeats; **bold** is worse, plain is better, (in brackets) no "
        "clear change: smaller than the control's own change from repeat to repeat, or not the same in all "
        "repeats. A `?` stands where the control was measured but once. Below 1 is better for times and "
        "memory. ITL is the time between two chunks, and a chunk is a whole round: it grows when rounds do "
        "more.\n"
    )
    return "\n".join(lines)


def _verdicts(found: list[dict[str, Any]], levels: Sequence[int]) -> str:
    metrics = list(dict.fromkeys(change["metric"] for change in found))
    at = {(change["metric"], change["concurrency"]): change for change in found}
    rows = [
        [metric, *(_judged(at[metric, level]) if (metric, level) in at else "-" for level in levels)]
        for metric in metrics
    ]
    return table(["", *(f"{level} at a time" for level in levels)], rows)


def _judged(change: dict[str, Any]) -> str:
    value = f"{change['ratio']['median']:.2f}"
    form = {"worse": "**{}**", "better": "{}", "no clear change": "({})", "not judged": "{} ?"}
    return form[change["verdict"]].format(value)


def drift(report: dict[str, Any]) -> str:
    """How the controls' throughput changed from the first repeat to the last."""
    rows = [
        [server, *(f"{levels[str(c)]:.2f}" if str(c) in levels else "-" for c in report["levels"])]
        for server, levels in report["drift"].items()
    ]
    head = ["server", *(f"{level} at a time" for level in report["levels"])]
    lines = ["## Drift\n", "Throughput of the control's last repeat over its first:\n", table(head, rows)]
    lines.append(
        "No speculation was measured before and after the others where there was more than one repeat. "
        "Fixed work ignores EOS, so answers run on past their end: that equals the work, not the text.\n"
    )
    return "\n".join(lines)
