"""The top of the report: the result in short, what to distrust, what was run."""

from pathlib import PurePath
from typing import Any

from vllm_asd.tools.bench.cells import ASD, STRICT
from vllm_asd.tools.bench.markdown.tables import spread

_DRIFT = 0.1


def in_short(report: dict[str, Any], server: str) -> str:
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


def warning(report: dict[str, Any]) -> str:
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


def conditions(report: dict[str, Any]) -> str:
    """What was run, on what, and what could not be measured."""
    settings, made = report["settings"], report["provenance"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    commit = (made["git"] or "no commit")[:10] + (", with changes" if made["git_dirty"] else "")
    servers = ", ".join(f"`{_arguments(s)}`" for s in settings["speculations"])
    lines = [
        f"Model {PurePath(settings['model']).name}; drafters {servers}.",
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
    """The drafter's configuration, a model in it by its own name as the target is."""
    config = dict(speculation["config"])
    if "model" in config:
        config["model"] = PurePath(config["model"]).name
    return ", ".join(f"{key}={value}" for key, value in config.items())
