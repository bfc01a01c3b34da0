"""The report for a reader: what was gained, what got worse, and how far to trust it."""

from collections.abc import Iterable, Sequence
from typing import Any

from eval.bench.cells import ASD, FLY, NONE, SHADOW, STRICT
from eval.bench.step_timer import PARTS

_NAMES = {NONE: "no speculation", STRICT: "strict", ASD: "ASD", SHADOW: "shadow", FLY: "vLLM's fly"}
_ORDER = (STRICT, ASD, SHADOW, FLY)
_DRIFT = 0.1


def to_markdown(report: dict[str, Any]) -> str:
    """Write the whole report."""
    servers = [server for server in report["arms"] if server != NONE]
    parts = [
        "# Speed under load\n",
        *(_in_short(report, server) for server in servers),
        _warning(report),
        _conditions(report),
        "![Speed-up by concurrency](speedup.png)\n",
        *(_speed(report, server) for server in servers),
        _changes(report),
        "## Latency, ms\n\n![Latency distributions](latency.png)\n",
        _latency(report),
        _acceptance(report, servers),
        _step(report),
        _memory(report),
        _other(report, "natural", "## Answers that end by themselves"),
        _other(report, "trace", "## Arrivals and lengths from a trace"),
        _prediction(report),
        _trust(report),
    ]
    return "\n".join(part for part in parts if part)


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


def _in_short(report: dict[str, Any], server: str) -> str:
    """The result in a few sentences, gains and losses alike."""
    gains = []
    for level in map(str, report["levels"]):
        cell = report["arms"][server].get(ASD, {}).get(level, {})
        if cell.get("ratio"):
            over_none = f", {spread(cell['speedup'])} of no speculation's" if cell["speedup"] else ""
            gains.append(f"{level} at a time: {spread(cell['ratio'])} of strict's tokens/s{over_none}")
    found = " ".join(
        f"{word.capitalize()} than strict: {_judged_so(report, server, word)}."
        for word in ("worse", "better")
    )
    return f"**{server}, ASD.** {'; '.join(gains)}. {found}\n"


def _judged_so(report: dict[str, Any], server: str, word: str) -> str:
    """The figures of ASD against strict with that verdict, as in `TPOT p50 at 1, 4; TPOT p99 at 4`."""
    levels: dict[str, list[str]] = {}
    for change in report["changes"]:
        which = tuple(change[key] for key in ("server", "arm", "against", "verdict"))
        if which == (server, ASD, STRICT, word):
            levels.setdefault(change["metric"], []).append(str(change["concurrency"]))
    named = (f"{metric} at {', '.join(at)}" for metric, at in levels.items())
    return "; ".join(named) or "nothing clearly"


def _warning(report: dict[str, Any]) -> str:
    """Controls that changed too much for a ratio to them to be trusted; empty if none did."""
    drifted = [
        f"{server} at {level} (x{change:.2f})"
        for server, levels in report["drift"].items()
        for level, change in levels.items()
        if abs(change - 1) > _DRIFT
    ]
    if not drifted:
        return ""
    return (
        f"**The machine changed its speed** by more than {_DRIFT:.0%} between the first and the last repeat "
        f"of a control: {', '.join(drifted)}. Ratios to no speculation and the planner's errors suffer from "
        "it, ratios within a triplet less.\n"
    )


def _conditions(report: dict[str, Any]) -> str:
    settings, made = report["settings"], report["provenance"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    commit = (made["git"] or "no commit")[:10] + (", with changes" if made["git_dirty"] else "")
    servers = ", ".join(f"`{_arguments(s)}`" for s in settings["speculations"])
    lines = [
        f"Model {settings['model'].rpartition('/')[2]}; drafters {servers}.",
        f"Fixed work: {settings['max_tokens']} output tokens per request (`ignore_eos`), the same prompts "
        f"({settings['data']}) for every arm, at least {settings['prompts']} requests and "
        f"{settings['waves']} per user; {settings['repeats']} strict-ASD-strict triplets per concurrency. "
        "The load is `vllm bench serve`, temperature 0. Prefix caching is off on every server; one warm-up "
        'per server and concurrency is thrown away. Strict is budget 0 and shadow `asd_mode` "shadow", by '
        "request, on the ASD server.",
        f"Made {made['made']} at {commit}; {versions}; {made['machine']}.",
        *report["notes"],
    ]
    return "\n\n".join(line for line in lines if line) + "\n"


def _arguments(speculation: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in speculation["config"].items())


def _speed(report: dict[str, Any], server: str) -> str:
    arms, plain = report["arms"][server], report["arms"][NONE].get(NONE, {})
    present = [arm for arm in _ORDER if arm in arms]
    head = ["at a time", "no speculation, tokens/s"]
    head += [f"{_NAMES[arm]} / none" for arm in present] + ["ASD / strict", "shadow / strict"]
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


def _changes(report: dict[str, Any]) -> str:
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
                lines.append(f"### {server}: {_NAMES[arm]} against {_NAMES[against]}\n")
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


def _latency(report: dict[str, Any]) -> str:
    head = ["server", "arm", "at a time"]
    head += [f"{title} p50 / p95 / p99" for title in ("TTFT", "TPOT", "end to end")] + ["ITL p50 / p99"]
    rows = []
    for server, arm, level, cell in _cells(report):
        latency = cell["latency_ms"]
        row = [server, _NAMES[arm], level]
        for name in ("ttft", "tpot", "e2e"):
            row.append(" / ".join(f"{latency[name][p]:.0f}" for p in ("p50", "p95", "p99")))
        row.append(" / ".join(f"{latency['itl'][p]:.0f}" for p in ("p50", "p99")))
        rows.append(row)
    return table(head, rows)


def _acceptance(report: dict[str, Any], servers: Sequence[str]) -> str:
    rows = []
    for server, arm, level, cell in _cells(report):
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
            [server, _NAMES[arm], level, f"{found['tokens_per_round']:.2f}", positions, drafted, regret]
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


def _step(report: dict[str, Any]) -> str:
    if not report["profile"]:
        return ""
    lines = ["## Where the time of a decode step goes, ms\n"]
    if any(profile["by_batch"] for profile in report["profile"].values()):
        lines.append("![Parts of a step](step.png)\n")
    rows = []
    shares = []
    for server, profile in report["profile"].items():
        for size, arms in profile["by_batch"].items():
            for arm, found in arms.items():
                mean = found["mean_ms"]
                shares.append((found["rule_share"], server, size) if arm == ASD else (0.0, server, size))
                parts = [f"{mean[part]:.2f}" for part in PARTS]
                rows.append(
                    [server, size, _NAMES[arm], f"{mean['step']:.1f}", *parts, f"{found['rule_share']:.2%}"]
                )
    lines.append(table(["server", "batch", "arm", "step", *PARTS, "the rule's share"], rows))
    low, high = min(s for s in shares if s[0] > 0), max(shares)
    lines.append(
        f"The rule takes {low[0]:.2%} to {high[0]:.2%} of a step (largest: {high[1]}, batch {high[2]}). "
        "Means over the steps in which the whole batch decodes, timed in one process around the runner's own "
        "methods (`python -m eval.bench.profile`); verification is vLLM's sampler without the rule.\n"
    )
    return "\n".join(lines)


def _memory(report: dict[str, Any]) -> str:
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


def _other(report: dict[str, Any], work: str, title: str) -> str:
    rows = []
    arrivals = None
    for server, arms in report["other"][work].items():
        for arm, cell in arms.items():
            arrivals = cell["arrivals"] or arrivals
            latency = cell["latency_ms"]
            ratio = cell.get("duration_ratio")
            row = [
                server,
                _NAMES[arm],
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


def _prediction(report: dict[str, Any]) -> str:
    rows = [
        [
            item["server"],
            _NAMES[item["arm"]],
            str(item["concurrency"]),
            f"{item['tokens_per_round']:.2f}",
            f"{item['round_cost']:.2f}",
            f"{item['predicted']:.2f}",
            f"{item['measured']:.2f}",
            f"{item['error']:+.0%}",
        ]
        for item in report["prediction"]
    ]
    if not rows:
        return ""
    head = [
        "server",
        "arm",
        "at a time",
        "tokens per round",
        "cost of a round",
        "predicted",
        "measured",
        "error",
    ]
    worst = max(report["prediction"], key=lambda item: abs(item["error"]))
    lines = [
        "## The planner's prediction\n",
        "Speed-up over no speculation from `vllm-asd plan`'s model: tokens per round over the "
        "cost of a round, in plain decode steps at that concurrency (mean ITL of strict over that of no "
        "speculation).\n",
        table(head, rows),
        f"Largest error: {worst['explanation']}\n",
        "Where each comes from:\n",
        *(f"- {item['explanation']}" for item in report["prediction"]),
    ]
    return "\n".join(lines) + "\n"


def _trust(report: dict[str, Any]) -> str:
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


def _cells(report: dict[str, Any]) -> Iterable[tuple[str, str, str, dict[str, Any]]]:
    for server, arms in report["arms"].items():
        for arm, levels in arms.items():
            for level, cell in levels.items():
                yield server, arm, level, cell
