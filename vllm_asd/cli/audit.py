"""`vllm-asd audit`: did quality hold? Strict, ASD, strict on one server, paired item by item."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_asd.cli import options
from vllm_asd.cli.ending import JUDGED, checking, keeping
from vllm_asd.tools.server.keyed_request import use_api_key
from vllm_asd.tools.usage import BadUsage

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_NEEDED = ("lm_eval", "aiohttp", "tenacity", "datasets", "scipy", "matplotlib", "yaml")
_BUILTIN_TASKS, _BUILTIN_CODE = ("arithmetic", "choices", "arithmetic_es"), ("coding",)
_POINTS = 100


class FailOn(StrEnum):
    """Verdicts that end the command with status 3."""

    INFERIOR = "inferior"
    UNDECIDED = "undecided"


# Whoever does not accept "undecided" does not accept a shown loss either.
_FAILING = {FailOn.INFERIOR: ("inferior",), FailOn.UNDECIDED: ("inferior", "undecided")}


@options.register(app, "audit")
def main(
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    tasks: Annotated[
        str | None, typer.Option(help="With --data ours, without it lm-eval's own.", metavar="NAME,...")
    ] = None,
    data: options.Data = None,
    limits: options.Limits = None,
    prompts: options.Prompts = None,
    concurrency: options.Concurrency = "16",
    max_tokens: Annotated[
        str | None, typer.Option(help="Longest answer: 256, or by task: 256,mmlu=96.", metavar="N,TASK=N,...")
    ] = None,
    completions: Annotated[bool, typer.Option(help="A base model: no chat template.")] = False,
    run_code: Annotated[bool, typer.Option(help="Let tasks run what the model wrote.")] = False,
    margin: Annotated[
        float, typer.Option(help="Loss of score that is tolerated, in points.", min=0.01, max=100)
    ] = 1.0,
    likelihood_items: Annotated[
        int | None,
        typer.Option(help="Items per task whose answers' likelihood is measured (default: all).", min=0),
    ] = None,
    served_model: options.ServedModel = None,
    output: options.Output = Path("audit-report"),
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="Exit status 3 if the verdict is this (undecided: or inferior)."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Audit quality: run tasks strict, under ASD and strict again on one server, and judge the difference.

    Example: vllm-asd audit --data builtin --url http://localhost:8000

    Frozen limits on your data: vllm-asd audit --limits configs/serve/mine.yaml --data ../data
    --tasks gsm8k,humaneval --run-code --prompts 100

    From the hub: vllm-asd audit --tasks gsm8k_cot_zeroshot,ifeval
    """
    use_api_key(api_key)
    options.require(_NEEDED, "eval")
    from vllm_asd.tools.audit.command import Options, audit, prepare
    from vllm_asd.tools.concurrency import read_one_level
    from vllm_asd.tools.data_option import read_folder

    with checking():
        folder = read_folder(data or [])
        given = Options(
            url=url,
            served_model=served_model,
            tasks=_names(tasks, folder, run_code),
            data=folder,
            limits=limits,
            prompts=prompts,
            concurrency=read_one_level(concurrency),
            max_tokens=_lengths(max_tokens),
            completions=completions,
            run_code=run_code,
            margin=margin / _POINTS,
            likelihood_items=likelihood_items,
            folder=output,
        )
        prepared = prepare(given)
    with keeping(output), options.only_json(as_json):
        report = audit(given, prepared, Console(highlight=False, stderr=True))
        for sentence in report.overall.sentences:
            typer.echo(sentence)
        typer.echo(f"{output / 'report.md'}  {output / 'report.html'}  {output / 'report.json'}")
    if as_json:
        options.print_json(report.model_dump(mode="json", by_alias=True))
    if fail_on is not None and report.overall.verdict in _FAILING[fail_on]:
        raise typer.Exit(JUDGED)


def _names(tasks: str | None, data: Path | str | None, run_code: bool) -> tuple[str, ...]:
    if tasks is not None:
        names = tuple(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
        if names:
            return names
    elif isinstance(data, str):
        return _BUILTIN_TASKS + (_BUILTIN_CODE if run_code else ())
    raise BadUsage("give --tasks, such as --tasks gsm8k,mmlu, or --data builtin")


def _lengths(text: str | None) -> dict[str, int]:
    lengths = {}
    for part in text.split(",") if text else ():
        task, _, number = part.rpartition("=")
        if not number.strip().isdecimal() or not 1 <= len(number.strip()) <= 9 or int(number) < 1:
            raise BadUsage(f"--max-tokens {part[:60]!r}: give a number, or TASK=NUMBER")
        lengths[task.strip()] = int(number)
    return lengths
