"""`vllm-asd calibrate`: which limits gain most on these prompts within a regret that the user caps?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from vllm_asd.tools.calibrate.freeze import Base
    from vllm_asd.tools.calibrate.run import Plan

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_INTERRUPTED = 130
_LIST = "N[,N...]"
# Where no terminal has a width.
_PLAIN_WIDTH = 112


@app.command()
def main(
    data: Annotated[
        list[str], typer.Option(help="JSONL with `id` and `prompt`; may be repeated.", metavar="NAME=FILE")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the answers; resumes from it.", file_okay=False)],
    freeze: Annotated[Path, typer.Option(help="Write this for `vllm serve --config`.", metavar="YAML")],
    url: Annotated[str, typer.Option(help="The server, started with lax limits.")] = "http://localhost:8000",
    served_model: Annotated[str | None, typer.Option(help="Its served name (default: its first).")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Freeze into this `--config` file of the server's.", exists=True)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Or: the model, as for `vllm serve`,")] = None,
    speculative_config: Annotated[
        str | None, typer.Option(help="and this, as the server got it.", metavar="JSON")
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="Its name in the frozen file, if another.")] = None,
    note: Annotated[list[str] | None, typer.Option(help="A line for the frozen file's comment.")] = None,
    max_regret: Annotated[float, typer.Option(help="Cap: nats per 100 tokens.", min=0.01)] = 3.0,
    max_exceptions: Annotated[
        float, typer.Option(help="Cap: tokens per 100 that are not the target's own.", min=0.01)
    ] = 8.0,
    min_parting: Annotated[
        float, typer.Option(help="Cap: token before which half the answers may not part.", min=0)
    ] = 0.0,
    prompts: Annotated[int, typer.Option(help="Of all data sets together.", min=2)] = 48,
    max_tokens: Annotated[int, typer.Option(help="Longest answer; as long as yours are.", min=8)] = 96,
    concurrency: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 24,
    gates: Annotated[
        str, typer.Option(help="Times the starting gate, which is measured.", metavar=_LIST)
    ] = "0.25,0.5,1",
    block_caps: Annotated[str, typer.Option(help="Exceptions per block.", metavar=_LIST)] = "1,2",
    budgets: Annotated[str, typer.Option(help="Nats per request.", metavar=_LIST)] = "2,8",
    refills: Annotated[
        str | None, typer.Option(help="Nats per token (default: 0 and --max-regret / 100).", metavar=_LIST)
    ] = None,
) -> None:
    """Find the limits that gain most rounds within your caps, and freeze them for `vllm serve --config`.

    Measures what strict verification rejects, then tries settings around the lower quartile of its price by
    paired runs against budget 0 on the running server. Start that with lax limits, as a request can only be
    stricter: "asd_budget": 100000, "asd_gate": 20, "asd_block_cap": 5, "asd_refill": 1, and with
    --per-request-spec-decode-metrics detailed. Ctrl-C loses nothing: the same command goes on from there.

    Example: vllm-asd calibrate --data gsm8k=calib.jsonl --config lax.yaml --output calib --freeze frozen.yaml
    """
    with _one_line_errors(output):
        from vllm_asd.tools.calibrate import inputs, run
        from vllm_asd.tools.calibrate.freeze import refuse_other_file
        from vllm_asd.tools.calibrate.outcome import Caps
        from vllm_asd.tools.data_option import read_data

        refuse_other_file(freeze, config)
        base = inputs.read_base(config, model, speculative_config, drafter)
        grid = inputs.read_grid(gates, block_caps, budgets, refills, max_regret)
        files = read_data(data)
        plan = run.Plan(
            served=inputs.read_server(url, served_model, base),
            data=files,
            prompts=run.deal(files, prompts),
            grid=grid,
            caps=Caps(max_regret, max_exceptions, min_parting),
            max_tokens=max_tokens,
            concurrency=concurrency,
            folder=output,
            pricing=base.asd.asd_pricing,
        )
        _run(plan, base, freeze, note or [])


def _run(plan: Plan, base: Base, target: Path, notes: list[str]) -> None:
    from vllm_asd.tools.calibrate.evidence import evidence, header
    from vllm_asd.tools.calibrate.freeze import write_frozen
    from vllm_asd.tools.calibrate.run import calibrate
    from vllm_asd.tools.calibrate.tables import show

    console = Console(highlight=False)
    console.print(plan.announcement(), soft_wrap=True)
    calibration = calibrate(plan)
    arguments = base.frozen(calibration.found.best.setting)
    comment = [*header(plan, calibration, target.name), *notes]
    write_frozen(target, arguments, comment, evidence(plan, calibration, arguments))
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    show(console, calibration, plan.caps)
    console.print(f"Frozen: vllm serve --config {target}", soft_wrap=True, style="bold")


@contextmanager
def _one_line_errors(output: Path) -> Iterator[None]:
    """End the command with one line and its exit status in place of a traceback."""
    try:
        import openai
    except ImportError as error:
        typer.echo(f"vllm-asd calibrate: this needs {error.name}: pip install 'vllm-asd[eval]'", err=True)
        raise typer.Exit(1) from None
    kept = f"what was finished is kept in {output}"
    try:
        yield
    except openai.OpenAIError as error:
        said = " ".join(str(error).split())[:300]
        reason = f"a request failed ({said}); {kept}: run the same command again"
    except (ValueError, OSError) as error:
        reason = str(error)
    except KeyboardInterrupt:
        typer.echo(f"stopped; {kept}: the same command goes on from there", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    else:
        return
    typer.echo(f"vllm-asd calibrate: {reason}", err=True)
    raise typer.Exit(1)
