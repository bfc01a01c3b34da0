"""The command `vllm-asd`: one module per subcommand, imported only when that subcommand runs.

A subcommand is a module `vllm_asd/cli/<name>.py` that defines `app`, a `typer.Typer` with a single command,
and a line in `SUBCOMMANDS`. A line without its module is not offered. What the commands share stands in
`options` (options that mean one thing everywhere), `renamed` (old names) and `ending` (exit codes).
"""

import importlib
import importlib.util
from typing import Any

import typer
from typer.core import TyperCommand

from vllm_asd.cli.ending import HELP_NAMES, Group
from vllm_asd.cli.options import VersionFlag

SUBCOMMANDS = {
    "doctor": "Check that this machine and this vLLM can run ASD, and that it is on.",
    "calibrate": "Find the limits (gate, cap, budget) that a workload allows.",
    "audit": "Compare ASD with a strict control on your own prompts.",
    "bench": "Measure speed on fixed work, strict and ASD in turn.",
    "plan": "Estimate from a cost model whether speculation pays.",
    "explain": "Show what was relaxed in a response, and what the target would have said.",
}

app = typer.Typer(
    cls=Group,
    help="Approximate speculative decoding for vLLM: is it on, what did it keep, does it pay?",
    context_settings=HELP_NAMES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@app.callback()
def _group(version: VersionFlag = False) -> None:
    # A callback keeps `vllm-asd NAME` a group even while it has a single subcommand.
    pass


class _Forwarding(TyperCommand):
    """Leaves every argument, `--help` and a bare `--` included, to the subcommand's own parser."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return args


def _register(name: str, summary: str) -> None:
    module = f"{__name__}.{name}"

    def forward(context: typer.Context) -> None:
        subcommand: typer.Typer = importlib.import_module(module).app
        subcommand(args=context.args, prog_name=f"vllm-asd {name}")

    app.command(name, cls=_Forwarding, help=summary, add_help_option=False)(forward)


for _name, _summary in SUBCOMMANDS.items():
    if importlib.util.find_spec(f"{__name__}.{_name}") is not None:
        _register(_name, _summary)
