"""The options that mean one thing in every command: name, type and help text stand here and nowhere else.

A command that takes one names its type in its signature and chooses the default. `register` adds `--version`,
`-h` and the ending of `vllm_asd.cli.ending`.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from vllm_asd import __version__
from vllm_asd.cli.ending import HELP_NAMES, Command

DEFAULT_URL = "http://localhost:8000"

_URL = typer.Option("--url", help="Address of a running server.")
Url = Annotated[str, _URL]
OptionalUrl = Annotated[str | None, _URL]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        help="The server's key, sent with every request.",
        envvar="VLLM_API_KEY",
        metavar="KEY",
    ),
]
ServerConfig = Annotated[
    Path | None,
    typer.Option("--server-config", help="The `vllm serve --config` file of the server.", metavar="YAML"),
]
Limits = Annotated[
    str | None,
    typer.Option(
        "--limits",
        help='ASD\'s limits: the file that calibrate froze, or JSON such as {"asd_budget": 8}.',
        metavar="FILE|JSON",
    ),
]
ServedModel = Annotated[
    str | None, typer.Option("--served-model", help="The model's name on the server (default: its first).")
]
Model = Annotated[
    str | None, typer.Option("--model", help="Folder or hub name of the model, as for `vllm serve`.")
]
_SPECULATIVE_CONFIG = typer.Option(
    "--speculative-config", help="As for `vllm serve`: the drafter, and ASD's settings.", metavar="JSON"
)
SpeculativeConfig = Annotated[str | None, _SPECULATIVE_CONFIG]
# One drafter each.
SpeculativeConfigs = Annotated[list[str] | None, _SPECULATIVE_CONFIG]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="Your prompts: NAME=FILE.jsonl (or FILE.jsonl), a FOLDER with SET/audit.jsonl, or `builtin`.",
        metavar="DATA",
    ),
]
Prompts = Annotated[
    int | None, typer.Option("--prompts", help="Number of prompts per set (the first ones).", min=1)
]
Concurrency = Annotated[str, typer.Option("--concurrency", help="Requests at a time.", metavar="N[,N...]")]
Output = Annotated[
    Path,
    typer.Option("--output", help="Folder for the results; what is unfinished there is continued."),
]
Chat = Annotated[
    bool,
    typer.Option("--chat/--no-chat", help="Ask through the model's chat template, or as plain text."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the figures as JSON to stdout, and nothing else there.")
]


def register(app: typer.Typer, name: str, **context_settings: Any) -> Callable[[Any], Any]:
    """Like `app.command(name)`, with `--version`, `-h` and one line per mistake."""

    class WithVersion(Command):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.params.append(_version_option())

    return app.command(name, cls=WithVersion, context_settings={**HELP_NAMES, **context_settings})


def _version_option() -> Any:
    """The option as Typer itself builds it, taken from a command that has nothing else."""
    made = typer.Typer(add_completion=False)

    @made.command()
    def _only(version: VersionFlag = False) -> None:
        pass

    (option,) = (p for p in typer.main.get_command(made).params if p.name == "version")
    option.expose_value = False
    return option


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vllm-asd {__version__}")
        raise typer.Exit


VersionFlag = Annotated[
    bool, typer.Option("--version", help="Show the version and end.", is_eager=True, callback=_show_version)
]


def require(packages: tuple[str, ...], extra: str) -> None:
    """Refuse to begin without what the command imports later.

    Raises:
        RuntimeError: Something is missing; the line says how to get it.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise RuntimeError(f"needs {', '.join(missing)}: pip install 'vllm-asd[{extra}]'")


@contextlib.contextmanager
def only_json(as_json: bool) -> Iterator[None]:
    """With `--json`, everything that is printed in here goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def print_json(figures: Any) -> None:
    """The whole of stdout under `--json`: one document; NaN and infinity, which JSON lacks, are null."""
    typer.echo(json.dumps(_finite(figures), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
