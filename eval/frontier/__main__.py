"""`python -m eval.frontier`: see the package."""

from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated

import typer

from eval.answers import Prompt, read_prompts
from eval.frontier import arms as all_arms
from eval.frontier.engine import IN_PROCESS, NGRAM, Settings, run_arms
from eval.frontier.report import write_frontier, write_windows
from eval.models import default_cache_dir, prepare_smollm2
from eval.server.environment import enter_environment
from eval.settings_file import keep_settings

app = typer.Typer(add_completion=False, help="What a nat of regret buys, rule by rule.")

Data = Annotated[list[str], typer.Option(help="NAME=FILE.jsonl with `id` and `prompt`; may be repeated.")]
Drafter = Annotated[
    Path | None, typer.Option(help="Drafter, a folder; none for n-grams.", exists=True, file_okay=False)
]
Output = Annotated[Path, typer.Option(help="Folder for the raw answers and the report.")]
Target = Annotated[Path | None, typer.Option(help="Target model, a folder; default SmolLM2-135M-Instruct.")]
Method = Annotated[str, typer.Option(help="vLLM's name of the drafting method.")]
DraftTokens = Annotated[int, typer.Option(help="K.")]
Arms = Annotated[str, typer.Option(help="Patterns of arm names, by commas; the control always runs.")]
Batch = Annotated[int, typer.Option(help="Requests at a time.")]
KvCache = Annotated[int, typer.Option(help="GiB for the KV cache, on a CPU.")]


@app.command()
def run(
    data: Data,
    output: Output,
    drafter: Drafter = None,
    target: Target = None,
    method: Method = "eagle3",
    draft_tokens: DraftTokens = 5,
    arms: Arms = "*",
    prompts: Annotated[int, typer.Option(help="Of each data set, from its top.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 96,
    batch: Batch = 32,
    kv_cache_gib: KvCache = 1,
) -> None:
    """Measure the frontier: every rule over its own knob. Resumes where it stopped; more prompts add to it.

    Example: python -m eval.frontier run --data gsm8k=gsm8k.jsonl --drafter eagle3-head --output out
    """
    enter_environment("eval.frontier", kv_cache_gib, IN_PROCESS)
    settings = Settings(
        target=target or prepare_smollm2(default_cache_dir()),
        drafter=drafter,
        method=method,
        draft_tokens=draft_tokens,
        max_tokens=max_tokens,
        ignore_eos=False,
        repetition_penalty=1.0,
        batch=batch,
    )
    _measure(settings, all_arms.FRONTIER, arms, _in_turn(data, prompts), output)
    write_frontier(output)


@app.command()
def long(
    data: Data,
    output: Output,
    drafter: Drafter = None,
    target: Target = None,
    method: Method = "eagle3",
    draft_tokens: DraftTokens = 5,
    arms: Arms = "*",
    prompts: Annotated[int, typer.Option(help="Of each data set, from its top.")] = 8,
    max_tokens: Annotated[int, typer.Option(help="Length of every answer.")] = 2000,
    repetition_penalty: Annotated[
        float, typer.Option(help="Keeps a small model out of loops; 1 = none.")
    ] = 1.1,
    batch: Batch = 32,
    kv_cache_gib: KvCache = 2,
) -> None:
    """Measure long answers with and without refill, per window of 256 tokens. Resumes.

    Example: python -m eval.frontier long --data mt=mt_bench.jsonl --drafter eagle3-head --output out-long
    """
    enter_environment("eval.frontier", kv_cache_gib, IN_PROCESS)
    settings = Settings(
        target=target or prepare_smollm2(default_cache_dir()),
        drafter=drafter,
        method=method,
        draft_tokens=draft_tokens,
        max_tokens=max_tokens,
        ignore_eos=True,
        repetition_penalty=repetition_penalty,
        batch=batch,
    )
    _measure(settings, all_arms.LONG, arms, _in_turn(data, prompts), output)
    write_windows(output)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="The --output of a run.")]) -> None:
    """Work the tables and pictures out anew from what a folder holds; starts no engine.

    Example: python -m eval.frontier report out
    """
    write_frontier(folder)


@app.command("report-long")
def report_long(folder: Annotated[Path, typer.Argument(help="The --output of a long run.")]) -> None:
    """The same for long answers.

    Example: python -m eval.frontier report-long out-long
    """
    write_windows(folder)


def _measure(
    settings: Settings, known: Sequence[all_arms.Arm], patterns: str, prompts: list[Prompt], output: Path
) -> None:
    if (settings.drafter is None) != (settings.method == NGRAM):
        raise typer.BadParameter(f"--method {settings.method}: send --drafter FOLDER, and none with {NGRAM}")
    output.mkdir(parents=True, exist_ok=True)
    try:
        chosen = all_arms.select(known, patterns)
        keep_settings(output / "settings.json", settings.described())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    run_arms(settings, prompts, chosen, output / "runs.jsonl")


def _in_turn(data: list[str], limit: int) -> list[Prompt]:
    """One prompt of each set after the other, so that what is done first is balanced."""
    sets = [entry.split("=", 1) for entry in data]
    if wrong := [entry for entry in sets if len(entry) != 2]:
        raise typer.BadParameter(f"--data {wrong[0][0]}: send NAME=FILE.jsonl")
    if missing := [path for _, path in sets if not Path(path).is_file()]:
        raise typer.BadParameter(f"--data {missing[0]}: no such file")
    rows = zip_longest(*(read_prompts(name, Path(path), limit) for name, path in sets))
    return [prompt for prompt in chain.from_iterable(rows) if prompt is not None]


if __name__ == "__main__":
    app(prog_name="python -m eval.frontier")
