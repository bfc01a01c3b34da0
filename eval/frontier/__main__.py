"""`python -m eval.frontier`: see the package."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated

import typer

from eval.frontier.arms import Arm, select
from eval.frontier.engine import IN_PROCESS, NGRAM, Settings, run_arms
from eval.frontier.experiments import EXPERIMENTS
from vllm_asd.tools.answers import Prompt, read_prompts
from vllm_asd.tools.data_option import read_data
from vllm_asd.tools.models import default_cache_dir, prepare_smollm2
from vllm_asd.tools.server.environment import enter_environment
from vllm_asd.tools.settings_file import keep_settings

try:
    from eval.frontier.report import write_report
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"eval.frontier needs {missing.name}: make setup-eval, or pip install 'vllm-asd[eval]'"
    ) from None

app = typer.Typer(add_completion=False, help="What a nat of regret buys, rule by rule.")


class Name(StrEnum):
    """What to measure."""

    FRONTIER = "frontier"
    LONG = "long"
    GUARD = "guard"


@app.command()
def run(
    data: Annotated[list[str], typer.Option(help="NAME=FILE.jsonl with `id` and `prompt`; may be repeated.")],
    output: Annotated[Path, typer.Option(help="Folder for the raw answers and the report.")],
    experiment: Annotated[Name, typer.Argument(help="What to measure.")] = Name.FRONTIER,
    drafter: Annotated[
        Path | None, typer.Option(help="Drafter, a folder; none for n-grams.", exists=True, file_okay=False)
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="Target model, a folder; default SmolLM2-135M-Instruct.")
    ] = None,
    method: Annotated[str, typer.Option(help="vLLM's name of the drafting method.")] = "eagle3",
    draft_tokens: Annotated[int, typer.Option(help="K.")] = 5,
    dtype: Annotated[str, typer.Option(help="vLLM's; float32 is right and fast on any CPU.")] = "auto",
    arms: Annotated[
        str, typer.Option(help="Patterns of arm names, by commas; the control always runs.")
    ] = "*",
    prompts: Annotated[int, typer.Option(help="Of each data set, from its top.")] = 64,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer; default: the experiment's.")] = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 32,
    kv_cache_gib: Annotated[int, typer.Option(help="GiB for the KV cache, on a CPU.")] = 2,
) -> None:
    """Measure. Resumes where it stopped; more prompts, or arms, add to what is there.

    frontier: every rule over its own knob. long: 2,000 tokens, whose gain is told by windows of 256, with and
    without refill. guard: a lax setting with and without the guard, up to 1,024 tokens.

    Example: python -m eval.frontier run --data gsm8k=gsm8k.jsonl --drafter eagle3-head --output out
    """
    enter_environment("eval.frontier", kv_cache_gib, IN_PROCESS)
    chosen = EXPERIMENTS[experiment]
    settings = Settings(
        target=target or prepare_smollm2(default_cache_dir()),
        drafter=drafter,
        method=method,
        draft_tokens=draft_tokens,
        dtype=dtype,
        max_tokens=max_tokens or chosen.max_tokens,
        ignore_eos=chosen.ignore_eos,
        repetition_penalty=chosen.repetition_penalty,
        batch=batch,
    )
    _measure(settings, chosen.arms, arms, _in_turn(data, prompts), output)
    write_report(output)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="The --output of a run.")]) -> None:
    """Work the tables and pictures out anew from what a folder holds; starts no engine.

    Example: python -m eval.frontier report out
    """
    write_report(folder)


def _measure(
    settings: Settings, known: Sequence[Arm], patterns: str, prompts: list[Prompt], output: Path
) -> None:
    if (settings.drafter is None) != (settings.method == NGRAM):
        raise typer.BadParameter(f"--method {settings.method}: send --drafter FOLDER, and none with {NGRAM}")
    output.mkdir(parents=True, exist_ok=True)
    try:
        chosen = select(known, patterns)
        keep_settings(output / "settings.json", settings.described())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    run_arms(settings, prompts, chosen, output / "runs.jsonl")


def _in_turn(data: list[str], limit: int) -> list[Prompt]:
    """One prompt of each set after the other, so that what is done first is balanced."""
    try:
        files = read_data(data)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    rows = zip_longest(*(read_prompts(file.name, file.path, limit) for file in files))
    return [prompt for prompt in chain.from_iterable(rows) if prompt is not None]


if __name__ == "__main__":
    app(prog_name="python -m eval.frontier")
