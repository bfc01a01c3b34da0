"""The README's results: what the default limits gain per pass of the target model, and what got worse.

    python -m eval.frontier.readme eval/reports/frontier docs/gain.png

prints the table and draws the picture. Tokens per target pass are (tokens of the answer - 1) / passes after
the prompt's own: the first token comes from the prompt, and a draft that the end of an answer cut off was
not output.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from eval.frontier.loops import loops
from eval.frontier.runs import Run, complete_prompts, read_runs
from vllm_asd.tools.statistics.resampling import Interval, ResampledSums

STRICT, DEFAULT = "strict", "paper-b8-g0.25"
TASKS = {"gsm8k": "gsm8k", "alpaca": "alpaca", "humaneval": "humaneval", "mgsm_es": "MGSM, Spanish"}
HEADER = "| task | strict | ASD | ratio (95%) | exceptions / 100 | loops, strict | loops, ASD |\n"


@dataclass(frozen=True)
class Row:
    """One task, or all.

    Attributes:
        name: As the table says it.
        strict: Tokens per target pass under budget 0.
        asd: The same at the default limits.
        ratio: The second over the first, with its interval over prompts.
        exceptions: Exceptions per 100 tokens.
        looping: Share of the answers that end in a loop: strict, then ASD.
        changed: Share of the answers that differ.
    """

    name: str
    strict: float
    asd: float
    ratio: Interval
    exceptions: float
    looping: tuple[float, float]
    changed: float


def rows_of(folder: Path) -> list[Row]:
    """A row per task and one of all, from the recorded answers.

    Args:
        folder: What `python -m eval.frontier run` left, with `runs.jsonl`.

    Raises:
        ValueError: A task without an answer to compare.
    """
    prompts = complete_prompts(read_runs(folder / "runs.jsonl"), (STRICT, DEFAULT))
    by_task = {
        name: [(arms[STRICT], arms[DEFAULT]) for (of, _), arms in prompts.items() if of == task]
        for task, name in TASKS.items()
    }
    everything = [pair for pairs in by_task.values() for pair in pairs]
    return [_row(name, pairs) for name, pairs in by_task.items()] + [_row("all", everything)]


def _row(name: str, pairs: list[tuple[Run, Run]]) -> Row:
    sums = ResampledSums.of(
        {
            "strict tokens": [strict.tokens - 1 for strict, _ in pairs],
            "strict passes": [len(strict.emitted) - 1 for strict, _ in pairs],
            "asd tokens": [asd.tokens - 1 for _, asd in pairs],
            "asd passes": [len(asd.emitted) - 1 for _, asd in pairs],
        },
        strata=[strict.task for strict, _ in pairs],
    )
    total = {column: float(values[0]) for column, values in sums.observed.items()}
    ratio = sums.interval(
        lambda s: s["asd tokens"] / s["asd passes"] * s["strict passes"] / s["strict tokens"]
    )
    if ratio is None:
        raise ValueError(f"{name}: no answer of more than one token")
    return Row(
        name=name,
        strict=total["strict tokens"] / total["strict passes"],
        asd=total["asd tokens"] / total["asd passes"],
        ratio=ratio,
        exceptions=100 * sum(len(asd.exceptions) for _, asd in pairs) / sum(asd.tokens for _, asd in pairs),
        looping=_looping(pairs),
        changed=sum(strict.token_ids != asd.token_ids for strict, asd in pairs) / len(pairs),
    )


def _looping(pairs: list[tuple[Run, Run]]) -> tuple[float, float]:
    strict = sum(loops(strict.token_ids) for strict, _ in pairs)
    asd = sum(loops(asd.token_ids) for _, asd in pairs)
    return strict / len(pairs), asd / len(pairs)


def table(rows: list[Row]) -> str:
    """The README's table."""
    lines = [HEADER, "|---" * (HEADER.count("|") - 1) + "|\n"]
    for row in rows:
        ratio = f"{row.ratio.value:.2f} ({row.ratio.low:.2f}-{row.ratio.high:.2f})"
        strict, asd = row.looping
        lines.append(
            f"| {row.name} | {row.strict:.2f} | {row.asd:.2f} | {ratio} | {row.exceptions:.1f} "
            f"| {strict:.1%} | {asd:.1%} |\n"
        )
    return "".join(lines)


def draw(rows: list[Row], picture: Path) -> None:
    """Two panels: the ratio per task with its interval, and the answers that end in a loop."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    grey, blue = "#6b7580", "#0b6e99"
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), sharey=True)
    places = list(range(len(rows)))[::-1]
    for place, row in zip(places, rows, strict=True):
        low, high = row.ratio.low or 0.0, row.ratio.high or 0.0
        left.plot([low, high], [place, place], color=blue, linewidth=2)
        left.plot(row.ratio.value, place, "o", color=blue)
        left.annotate(f"{row.ratio.value:.2f}", (high, place), (6, -3), textcoords="offset points")
        before, after = (100 * share for share in row.looping)
        right.plot([before, after], [place, place], color="#c9d1d9", linewidth=2, zorder=1)
        right.plot(before, place, "o", color=grey)
        right.plot(after, place, "o", color=blue)
        right.annotate(f"{after:.1f}", (max(before, after), place), (6, -3), textcoords="offset points")
    left.set_yticks(places, [row.name for row in rows])
    left.axvline(1.0, color=grey, linestyle=":")
    left.annotate("strict", (1.0, len(rows) - 0.6), (3, 0), textcoords="offset points", color=grey)
    left.set_xlim(0.98, 1.29)
    left.set_ylim(-0.5, len(rows) - 0.3)
    left.set_title("tokens per target pass, ASD / strict", fontsize=10, loc="left")
    highest = 100 * max(max(row.looping) for row in rows)
    right.set_xlim(-1, highest * 1.25)
    right.set_title("% of answers that end in a loop", fontsize=10, loc="left")
    right.annotate(
        "strict", (before, places[-1]), (0, 8), textcoords="offset points", color=grey, ha="center"
    )
    right.annotate("ASD", (after, places[-1]), (0, 8), textcoords="offset points", color=blue, ha="center")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    found = rows_of(Path(sys.argv[1]))
    draw(found, Path(sys.argv[2]))
    print(table(found), end="")
    print(f"answers that differ: {found[-1].changed:.1%}")
