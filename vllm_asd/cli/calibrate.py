"""`vllm-asd calibrate`: which limits gain most on these prompts within a regret that the user caps?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vllm_asd.cli import options
from vllm_asd.cli.ending import checking, keeping
from vllm_asd.tools.server.keyed_request import use_api_key

if TYPE_CHECKING:
    from vllm_asd.tools.calibrate.freeze import Base
    from vllm_asd.tools.calibrate.run import Plan

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_NEEDED = ("openai", "numpy", "yaml")
_LIST = "N[,N...]"
# Where no terminal has a width.
_PLAIN_WIDTH = 112


@options.register(app, "calibrate")
def main(
    data: options.Data,
    output: options.Output,
    freeze: Annotated[Path, typer.Option(help="Write this for `vllm serve --config`.", metavar="YAML")],
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    served_model: options.ServedModel = None,
    server_config: options.ServerConfig = None,
    model: options.Model = None,
    speculative_config: options.SpeculativeConfig = None,
    drafter: Annotated[str | None, typer.Option(help="Its name in the frozen file, if another.")] = None,
    note: Annotated[list[str] | None, typer.Option(help="A line for the frozen file's comment.")] = None,
    max_regret: Annotated[float, typer.Option(help="Cap: nats per 100 tokens.", min=0.01)] = 3.0,
    max_exceptions: Annotated[
        float, typer.Option(help="Cap: tokens per 100 that are not the target's own.", min=0.01)
    ] = 8.0,
    min_parting: Annotated[
        float, typer.Option(help="Cap: token before which half the answers may not differ.", min=0)
    ] = 0.0,
    prompts: options.Prompts = 48,
    max_tokens: Annotated[int, typer.Option(help="Longest answer; as long as yours are.", min=8)] = 96,
    concurrency: options.Concurrency = "24",
    gates: Annotated[
        str, typer.Option(help="Times the starting gate, which is measured.", metavar=_LIST)
    ] = "0.25,0.5,1",
    block_caps: Annotated[str, typer.Option(help="Exceptions per block.", metavar=_LIST)] = "1,2",
    budgets: Annotated[str, typer.Option(help="Nats per request.", metavar=_LIST)] = "2,8",
    refills: Annotated[
        str | None, typer.Option(help="Nats per token (default: 0 and --max-regret / 100).", metavar=_LIST)
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the limits that gain most rounds within your caps, and freeze them for `vllm serve --config`.

    Measures what strict verification rejects, then tries settings around the lower quartile of its price by
    paired runs against budget 0 on the running server. Start that with loose limits, as a request can only be
    stricter: "asd_budget": 100000, "asd_gate": 20, "asd_block_cap": 5, "asd_refill": 1, and with
    --per-request-spec-decode-metrics detailed. Ctrl-C loses nothing: the same command continues from there.

    Example: vllm-asd calibrate --data gsm8k=calib.jsonl --server-config loose.yaml --output calib
    --freeze frozen.yaml
    """
    use_api_key(api_key)
    options.require(_NEEDED, "eval")
    from vllm_asd.tools.calibrate import inputs, run
    from vllm_asd.tools.calibrate.freeze import refuse_other_file
    from vllm_asd.tools.calibrate.outcome import Caps
    from vllm_asd.tools.concurrency import read_one_level
    from vllm_asd.tools.data_option import read_data
    from vllm_asd.tools.settings_file import refuse_other_folder

    with checking():
        at_a_time = read_one_level(concurrency)
        refuse_other_folder(output / run.CONDITIONS)
        refuse_other_file(freeze, server_config)
        base = inputs.read_base(server_config, model, speculative_config, drafter)
        grid = inputs.read_grid(gates, block_caps, budgets, refills, max_regret)
        files = read_data(data or [])
        asked = run.deal(files, (prompts or sys.maxsize) * len(files))
    plan = run.Plan(
        served=inputs.read_server(url, served_model, base),
        data=files,
        prompts=asked,
        grid=grid,
        caps=Caps(max_regret, max_exceptions, min_parting),
        max_tokens=max_tokens,
        concurrency=at_a_time,
        folder=output,
        pricing=base.asd.asd_pricing,
    )
    with keeping(output), options.only_json(as_json):
        figures = _run(plan, base, freeze, note or [])
    if as_json:
        options.print_json(figures)


def _run(plan: Plan, base: Base, target: Path, notes: list[str]) -> dict[str, Any]:
    from vllm_asd.tools.calibrate.evidence import evidence, header
    from vllm_asd.tools.calibrate.freeze import write_frozen
    from vllm_asd.tools.calibrate.run import calibrate
    from vllm_asd.tools.calibrate.tables import show

    console = Console(highlight=False)
    console.print(plan.announcement(), soft_wrap=True)
    calibration = calibrate(plan)
    arguments = base.frozen(calibration.found.best.setting)
    comment = [*header(plan, calibration, target.name), *notes]
    figures = evidence(plan, calibration, arguments)
    write_frozen(target, arguments, comment, figures)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    show(console, calibration, plan.caps)
    console.print(f"Frozen: vllm serve --config {target}", soft_wrap=True, style="bold")
    return figures
