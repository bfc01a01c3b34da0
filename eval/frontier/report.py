"""Tables, pictures and a summary from what a folder holds."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.frontier.arms import REPLAYED, STRICT, Arm
from eval.frontier.curves import (
    AtEqualCost,
    Point,
    Prompts,
    ReplayedPoint,
    at_equal_cost,
    point,
    replayed_at_equal_cost,
    replayed_points,
    resample,
)
from eval.frontier.experiments import KNOWN_ARMS
from eval.frontier.plot import draw_frontier, draw_overview
from eval.frontier.plot_windows import draw_windows
from eval.frontier.runs import complete_prompts, read_runs
from eval.frontier.windows import Window, windows
from vllm_asd.tools.provenance import provenance
from vllm_asd.tools.statistics.resampling import Interval

FRONTIER_SCHEMA = "vllm-asd/frontier/1"
WINDOWS_SCHEMA = "vllm-asd/windows/1"
POOLED = "all"


def write_report(folder: Path) -> None:
    """Write `summary.json`, `frontier.png` and `overview.png`, and print the tables.

    Where all answers have one length, `windows.json` and `windows.png` as well.

    Raises:
        SystemExit: No prompt has all arms.
    """
    settings, arms, prompts = _read(folder)
    _write_frontier(folder, settings, arms, prompts)
    if settings.get("ignore_eos"):
        _write_windows(folder, settings, arms, prompts)


def _write_frontier(folder: Path, settings: dict[str, Any], arms: list[Arm], prompts: Prompts) -> None:
    by_task = {
        task: {k: v for k, v in prompts.items() if k[0] == task} for task in sorted({t for t, _ in prompts})
    }
    if len(by_task) > 1:
        by_task[POOLED] = dict(prompts)
    points: dict[str, list[Point]] = {}
    replayed: dict[str, list[ReplayedPoint]] = {}
    equal: dict[str, list[AtEqualCost]] = {}
    for task, some in by_task.items():
        sums = resample(some, arms)
        points[task] = [point(arm, some, sums) for arm in arms if arm.name != STRICT]
        replayed[task] = replayed_points(REPLAYED, sums)
        equal[task] = at_equal_cost(arms, sums) + replayed_at_equal_cost(REPLAYED, sums)
    summary = {
        "schema": FRONTIER_SCHEMA,
        **provenance(("python", "-m", "eval.frontier")),
        "settings": settings,
        "prompts": {task: len(some) for task, some in by_task.items()},
        "points": {task: [asdict(row) for row in rows] for task, rows in points.items()},
        "replayed": {task: [asdict(row) for row in rows] for task, rows in replayed.items()},
        "at_equal_cost": {task: [asdict(row) for row in rows] for task, rows in equal.items()},
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    title = _title(settings, prompts)
    draw_frontier(points, replayed, title, folder / "frontier.png")
    draw_overview(points, replayed, list(by_task)[-1], title, folder / "overview.png")
    for task in by_task:
        _show_points(f"{task}, {len(by_task[task])} prompts", points[task])
        _show_replayed(f"{task}, decided again on the control's own blocks", replayed[task])
        _show_equal(task, equal[task])


def _write_windows(folder: Path, settings: dict[str, Any], arms: list[Arm], prompts: Prompts) -> None:
    rows = windows(prompts, [arm.name for arm in arms])
    summary = {
        "schema": WINDOWS_SCHEMA,
        **provenance(("python", "-m", "eval.frontier")),
        "settings": settings,
        "prompts": len(prompts),
        "windows": [asdict(row) for row in rows],
    }
    (folder / "windows.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw_windows(rows, _title(settings, prompts), folder / "windows.png")
    _show_windows(rows)


def _read(folder: Path) -> tuple[dict[str, Any], list[Arm], Prompts]:
    runs = read_runs(folder / "runs.jsonl")
    present = {run.arm for run in runs}
    arms = [arm for arm in KNOWN_ARMS if arm.name in present]
    prompts = complete_prompts(runs, [arm.name for arm in arms])
    if not prompts:
        raise SystemExit(f"{folder}: no prompt has been answered under all arms yet")
    return json.loads((folder / "settings.json").read_text()), arms, prompts


def _title(settings: dict[str, Any], prompts: Prompts) -> str:
    return (
        f"{settings['target']}, {settings['drafter'] or settings['method']}, K = {settings['draft_tokens']}, "
        f"{settings['max_tokens']} tokens, {len(prompts)} prompts"
    )


def _percent(interval: Interval | None) -> str:
    return "-" if interval is None else _with_ends(interval, 100, ".1f")


def _with_ends(interval: Interval, scale: float, form: str) -> str:
    low, high = ("?" if end is None else format(scale * end, form) for end in (interval.low, interval.high))
    return f"{format(scale * interval.value, form)} ({low}..{high})"


def _print(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in header:
        table.add_column(name, justify="left" if name == header[0] else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=190).print(table)


def _show_points(title: str, points: Sequence[Point]) -> None:
    header = (
        "arm",
        "gain %",
        "same blocks %",
        "nats/token",
        "exc./100",
        "parts at",
        "changed",
        "length",
        "looping",
        "repeated",
    )
    rows = [
        (
            p.arm,
            _percent(p.gain),
            _percent(p.same_blocks),
            f"{p.regret.value:.4f}",
            f"{p.exceptions.value:.2f}",
            f"{p.median_divergence:.0f}",
            f"{p.changed:.0%}",
            f"{p.length.value:.3f}",
            _percent(p.looping),
            _percent(p.repeated),
        )
        for p in points
    ]
    _print(title, header, rows)


def _show_replayed(title: str, points: Sequence[ReplayedPoint]) -> None:
    rows = [
        (p.arm, _percent(p.replayed), f"{p.regret.value:.4f}", f"{p.exceptions.value:.2f}") for p in points
    ]
    _print(title, ("arm", "gain %", "nats/token", "exc./100"), rows)


def _show_equal(task: str, rows: Sequence[AtEqualCost]) -> None:
    for cost, unit in (("regret", "nats/token"), ("exceptions", "exceptions/100")):
        mine = [row for row in rows if row.cost == cost]
        families = list(dict.fromkeys(row.family for row in mine))
        lines = []
        for measure in dict.fromkeys(row.measure for row in mine):
            for against in dict.fromkeys(row.against for row in mine if row.measure == measure):
                here = [r for r in mine if (r.measure, r.against) == (measure, against)]
                ratios = {r.family: r.ratio for r in here}
                found = [ratios.get(family) for family in families]
                cells = ["-" if ratio is None else _with_ends(ratio, 1, ".2f") for ratio in found]
                first = (f"{measure} {against}", f"{here[0].at:.3f}", f"{100 * here[0].paper:.1f}")
                lines.append((*first, *cells))
        _print(
            f"{task}: gain over the paper rule's at equal {unit}",
            ("against", unit, "paper %", *families),
            lines,
        )


def _show_windows(rows: Sequence[Window]) -> None:
    lines = [
        (
            r.arm,
            str(r.first_token),
            _percent(r.gain),
            _percent(r.same_blocks),
            f"{r.regret:.4f}",
            f"{r.repeated:.0%}",
            str(r.fresh),
            _percent(r.fresh_blocks),
        )
        for r in sorted(rows, key=lambda row: row.arm)
    ]
    header = (
        "arm",
        "from token",
        "gain %",
        "same blocks %",
        "nats/token",
        "repeated",
        "fresh",
        "fresh blocks %",
    )
    _print("by window", header, lines)
