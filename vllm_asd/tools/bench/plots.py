"""The report's pictures."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from vllm_asd.tools.bench.cells import ASD, FLY, NONE, SHADOW, STRICT
from vllm_asd.tools.bench.results import Results, pooled
from vllm_asd.tools.bench.step_timer import PARTS

_COLORS = {NONE: "#c0392b", STRICT: "#7b8794", ASD: "#0b6e99", SHADOW: "#c9a227", FLY: "#6b4fa0"}
_NAMES = {NONE: "no speculation", STRICT: "strict", ASD: "ASD", SHADOW: "shadow", FLY: "vLLM's fly"}
_LOSS = "#c0392b"
_PART_COLORS = ("#d5dbe1", "#7b8794", "#aab4be", "#c9a227", "#c0392b", "#0b6e99", "#eceff1")


def draw_all(report: dict[str, Any], results: Results, folder: Path) -> None:
    """Draw `speedup.png`, `latency.png` and, with a profile, `step.png`."""
    draw_speedup(report, folder / "speedup.png")
    draw_latency(report, results, folder / "latency.png")
    if report["profile"]:
        draw_step(report, folder / "step.png")


def draw_speedup(report: dict[str, Any], picture: Path) -> None:
    """Per drafter: speed-up over no speculation and over strict, by concurrency, with the repeats' range."""
    servers = [server for server in report["arms"] if server != NONE]
    figure, axes = plt.subplots(len(servers), 2, figsize=(10.5, 3.9 * len(servers)), squeeze=False)
    for (left, right), server in zip(axes, servers, strict=True):
        arms = report["arms"][server]
        for offset, arm in enumerate(arm for arm in (STRICT, ASD, SHADOW, FLY) if arm in arms):
            _points(left, report["levels"], arms[arm], "speedup", arm, offset)
            if arm in (ASD, SHADOW):
                _points(right, report["levels"], arms[arm], "ratio", arm, offset - 1)
        for item in report["prediction"]:
            if item["server"] == server:
                place = _place(report["levels"], item["concurrency"], 0 if item["arm"] == STRICT else 1)
                left.plot(place, item["predicted"], "x", ms=7, mew=1.6, color=_COLORS[item["arm"]], zorder=5)
        left.plot([], [], "x", color="black", label="the planner's prediction")
        left.set_title(f"{server}: over no speculation", fontsize=10)
        right.set_title(f"{server}: over strict, within a triplet", fontsize=10)
        for axis in (left, right):
            _finish(axis, report["levels"])
    figure.suptitle(_subtitle(report), fontsize=9)
    _save(figure, picture)


def draw_latency(report: dict[str, Any], results: Results, picture: Path) -> None:
    """Per concurrency: the distribution of time per output token and of end-to-end latency, by arm."""
    levels = report["levels"]
    names = (
        ("tpot_ms", "time per output token, ms"),
        ("ttft_ms", "first token, ms"),
        ("e2e_ms", "end to end, ms"),
    )
    figure, axes = plt.subplots(
        len(names), len(levels), figsize=(3.5 * len(levels) + 1, 2.7 * len(names)), squeeze=False
    )
    styles = ("-", "--", ":", "-.")
    servers = [server for server in report["arms"] if server != NONE]
    for row, (name, title) in zip(axes, names, strict=True):
        for axis, level in zip(row, levels, strict=True):
            _distribution(axis, results, (NONE, NONE, level), name, "-")
            for server, style in zip(servers, styles, strict=False):
                for arm in (STRICT, ASD, FLY):
                    _distribution(axis, results, (server, arm, level), name, style)
            axis.set_xlabel(title, fontsize=8)
            axis.set_ylim(0, 1.02)
            axis.set_xlim(left=0)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
    for axis, level in zip(axes[0], levels, strict=True):
        axis.set_title(f"{level} at a time", fontsize=9)
    axes[0][0].set_ylabel("share of requests", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=min(len(labels), 6), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def draw_step(report: dict[str, Any], picture: Path) -> None:
    """Stacked parts of a decode step, as shares, by drafter, batch and arm."""
    bars = [
        (f"{server}, {size}\n{_NAMES[arm]}", found["mean_ms"])
        for server, profile in report["profile"].items()
        for size, arms in profile["by_batch"].items()
        for arm, found in arms.items()
    ]
    figure, axis = plt.subplots(figsize=(max(6.5, 0.95 * len(bars) + 2.5), 3.9))
    bottom = np.zeros(len(bars))
    for part, color in zip(PARTS, _PART_COLORS, strict=True):
        shares = np.array([100 * mean[part] / mean["step"] for _, mean in bars])
        axis.bar(range(len(bars)), shares, 0.7, bottom=bottom, color=color, label=part)
        bottom += shares
    for place, (_, mean) in enumerate(bars):
        axis.text(place, 101, f"{mean['step']:.0f} ms", ha="center", fontsize=8)
    axis.set_xticks(range(len(bars)), [name for name, _ in bars], fontsize=7)
    axis.set_ylabel("% of a decode step")
    axis.set_ylim(0, 108)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    _save(figure, picture)


def _points(axis: Any, levels: list[int], cells: dict[str, Any], key: str, arm: str, offset: int) -> None:
    found = [(level, cells[str(level)][key]) for level in levels if cells.get(str(level), {}).get(key)]
    if not found:
        return
    places = [_place(levels, level, offset) for level, _ in found]
    middle = np.array([spread["median"] for _, spread in found])
    low = middle - [spread["min"] for _, spread in found]
    high = [spread["max"] for _, spread in found] - middle
    style = {"fmt": "o-", "ms": 5, "lw": 1.4, "capsize": 3, "color": _COLORS[arm], "label": _NAMES[arm]}
    axis.errorbar(places, middle, yerr=[low, high], **style)
    for place, value in zip(places, middle, strict=True):
        axis.annotate(f"{value:.2f}", (place, value), (6, 5), textcoords="offset points", fontsize=7)


def _place(levels: list[int], level: int, offset: int) -> float:
    """Levels side by side, and a level's arms next to each other: their ranges must not hide each other."""
    return levels.index(level) + 0.09 * offset


def _finish(axis: Any, levels: list[int]) -> None:
    low, high = axis.get_ylim()
    low, high = min(low, 0.9), max(high, 1.1)
    axis.set_ylim(low, high + 0.1 * (high - low))
    axis.axhspan(low, 1, color=_LOSS, alpha=0.07, lw=0)
    axis.axhline(1, color=_LOSS, lw=1)
    axis.set_xticks(range(len(levels)), list(map(str, levels)))
    axis.set_xlim(-0.3, len(levels) - 0.5)
    axis.set_xlabel("requests at a time")
    axis.set_ylabel("ratio of output tokens/s")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)


def _distribution(axis: Any, results: Results, where: tuple[str, str, int], name: str, style: str) -> None:
    server, arm, level = where
    values = np.sort(pooled(results.of(server, arm, level), name))
    if values.size:
        label = _NAMES[arm] if arm == NONE else f"{server}, {_NAMES[arm]}"
        shares = np.arange(values.size + 1) / values.size
        axis.step([values[0], *values], shares, style, where="post", color=_COLORS[arm], lw=1.4, label=label)


def _subtitle(report: dict[str, Any]) -> str:
    settings = report["settings"]
    return (
        f"{Path(settings['model']).name}, {settings['max_tokens']} tokens per request; bars: lowest to "
        "highest repeat"
    )


def _save(figure: Any, picture: Path) -> None:
    figure.tight_layout()
    figure.savefig(picture, dpi=130)
    plt.close(figure)
