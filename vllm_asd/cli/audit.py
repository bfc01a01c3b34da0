"""`vllm-asd audit`: did quality hold? Strict, ASD, strict on one server, paired item by item."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_NEEDED = ("lm_eval", "aiohttp", "tenacity", "datasets", "scipy", "matplotlib", "yaml")
_BUILTIN = "builtin"
_BUILTIN_TASKS, _BUILTIN_CODE = ("arithmetic", "choices", "arithmetic_es"), ("coding",)
_POINTS = 100


@app.command()
def main(
    url: Annotated[str, typer.Option(help="A server with ASD and detailed reports.")] = (
        "http://localhost:8000"
    ),
    tasks: Annotated[
        str | None, typer.Option(help="With --data ours, without it lm-eval's own.", metavar="NAME,...")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder with SET/audit.jsonl, or `builtin`; without it, the hub.", metavar="FOLDER"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Frozen limits: the file that calibrate wrote.", dir_okay=False, exists=True),
    ] = None,
    limits: Annotated[
        str | None, typer.Option(help='Instead: JSON such as {"asd_budget": 8}.', metavar="JSON")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Items per task (default: all).", min=1)] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 16,
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
    model: Annotated[str | None, typer.Option(help="Default: the server's first model.")] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for results; an unfinished audit there goes on.", file_okay=False)
    ] = Path("audit-report"),
) -> None:
    """Audit quality: run tasks strict, under ASD and strict again on one server, and judge the difference.

    Example: vllm-asd audit --data builtin --url http://localhost:8000

    Frozen limits on your data: vllm-asd audit --config configs/serve/mine.yaml --data ../data
    --tasks gsm8k,humaneval --run-code --limit 100

    From the hub: vllm-asd audit --tasks gsm8k_cot_zeroshot,ifeval
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        _stop(f"needs {', '.join(missing)}: pip install 'vllm-asd[eval]'")
    from vllm_asd.tools.audit.command import Options, audit
    from vllm_asd.tools.audit.sender import Unanswered

    options = Options(
        url=url,
        model=model,
        tasks=_names(tasks, data, run_code),
        data=data,
        config=config,
        limits=limits,
        limit=limit,
        concurrency=concurrency,
        max_tokens=_lengths(max_tokens),
        completions=completions,
        run_code=run_code,
        margin=margin / _POINTS,
        likelihood_items=likelihood_items,
        folder=output,
    )
    console = Console(highlight=False, stderr=True)
    try:
        report = audit(options, console)
    except Unanswered as error:
        _stop(f"{error}; what was answered is kept in {output}: run the same command again")
    except (ValueError, OSError) as error:
        _stop(" ".join(str(error).split()))
    except KeyboardInterrupt:
        _stop(f"stopped; what was answered is kept in {output}: run the same command again")
    for sentence in report.overall.sentences:
        typer.echo(sentence)
    typer.echo(f"{output / 'report.md'}  {output / 'report.html'}  {output / 'report.json'}")


def _names(tasks: str | None, data: str | None, run_code: bool) -> tuple[str, ...]:
    if tasks is not None:
        names = tuple(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
        if names:
            return names
    elif data == _BUILTIN:
        return _BUILTIN_TASKS + (_BUILTIN_CODE if run_code else ())
    _stop("give --tasks, such as --tasks gsm8k,mmlu, or --data builtin")


def _lengths(text: str | None) -> dict[str, int]:
    lengths = {}
    for part in text.split(",") if text else ():
        task, _, number = part.rpartition("=")
        if not number.strip().isdigit() or int(number) < 1:
            _stop(f"--max-tokens {part!r}: give a number, or TASK=NUMBER")
        lengths[task.strip()] = int(number)
    return lengths


def _stop(reason: object) -> NoReturn:
    typer.echo(f"vllm-asd audit: {reason}", err=True)
    raise typer.Exit(1) from None
