"""Options mean one thing in every command, old names are answered with the new one, keys reach the server."""

import importlib
import json
import re
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from vllm_asd import __version__, cli
from vllm_asd.cli import options
from vllm_asd.cli.renamed import RENAMED

ROOT = Path(__file__).resolve().parents[2]
NAMES = list(cli.SUBCOMMANDS)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What several commands may take: each must be the one of `options`.
SHARED = {
    "--url", "--api-key", "--server-config", "--limits", "--served-model", "--model", "--speculative-config",
    "--data", "--prompts", "--concurrency", "--output", "--json", "--version", "--chat", "--no-chat",
}  # fmt: skip
# The same words, each command's own: its answers have another length, its drafter another purpose.
OWN = {"--max-tokens", "--drafter"}


def command_of(name: str) -> Any:
    return typer.main.get_command(importlib.import_module(f"vllm_asd.cli.{name}").app)


def options_of(name: str) -> dict[str, Any]:
    return {
        opt: p for p in command_of(name).params for opt in (*p.opts, *p.secondary_opts) if opt[:2] == "--"
    }


def defined() -> dict[str, Any]:
    """The options of `vllm_asd.cli.options`, by name."""
    found = {}
    for value in vars(options).values():
        for extra in getattr(value, "__metadata__", ()):
            # Inside `Annotated` the first name stands where a default would.
            names = [name for name in (extra.default, *(extra.param_decls or ())) if isinstance(name, str)]
            found[names[0].split("/")[0]] = extra
    return found


def test_a_shared_option_is_the_one_of_the_options_module() -> None:
    """Name, type, help and metavar are the same wherever it stands, so that a new command can't drift."""
    known = defined()
    assert known.keys() | {"--no-chat"} == SHARED
    aliases = [value for value in vars(options).values() if hasattr(value, "__metadata__")]
    for name in NAMES:
        main = importlib.import_module(f"vllm_asd.cli.{name}").main
        hints = get_type_hints(main, include_extras=True)
        for opt, parameter in options_of(name).items():
            if opt in known:
                assert parameter.help == known[opt].help, (name, opt)
                assert parameter.metavar == known[opt].metavar, (name, opt)
            if opt in known and opt != "--version":
                assert hints[parameter.name] in aliases, (name, opt)
    # One name, one type; a command may only choose whether it can be left out or repeated.
    kinds = {
        opt: {_kind(alias) for alias in aliases if extra in alias.__metadata__}
        for opt, extra in known.items()
    }
    assert {opt for opt, found in kinds.items() if len(found) > 1} == set()


def _kind(alias: Any) -> str:
    """`str` for `str`, `str | None` and `list[str] | None`."""
    return re.sub(r"list\[(.*)\]|<class '(.*)'>", r"\1\2", str(alias.__origin__).removesuffix(" | None"))


def test_no_other_option_stands_in_two_commands() -> None:
    """A name that a second command wants to take belongs into the options module."""
    owners: dict[str, list[str]] = {}
    for name in NAMES:
        for opt in options_of(name):
            owners.setdefault(opt, []).append(name)
    repeated = {opt for opt, names in owners.items() if len(names) > 1}
    assert repeated <= SHARED | OWN


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_the_common_ones(name: str) -> None:
    found = options_of(name)
    assert {"--json", "--version"} <= found.keys()
    assert ("--api-key" in found) == (name != "doctor")
    for arguments in ([name, "--version"], ["--version"]):
        result = CliRunner().invoke(cli.app, arguments)
        assert (result.exit_code, result.stdout) == (0, f"vllm-asd {__version__}\n")
    for help_option in ("-h", "--help"):
        result = CliRunner().invoke(cli.app, [name, help_option])
        assert result.exit_code == 0
        assert "Usage" in result.stdout


OLD = [(name, old, new) for name, names in RENAMED.items() for old, new in names.items()]


@pytest.mark.parametrize(("name", "old", "new"), OLD)
def test_an_old_name_is_one_line_with_the_new_one(name: str, old: str, new: str) -> None:
    assert old not in options_of(name)
    assert new in options_of(name)
    for given in ([old, "x"], [f"{old}=x"]):
        result = CliRunner().invoke(cli.app, [name, *given])
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr == f"vllm-asd {name}: {old} is now {new}: give {new} in its place\n"


def shown_commands() -> Iterator[Any]:
    """Each `vllm-asd NAME ...` line of a shell block, as arguments."""
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("vllm-asd "):
                    yield pytest.param(shlex.split(line, comments=True)[1:], id=f"{page.name}: {line[:50]}")


@pytest.mark.parametrize("arguments", list(shown_commands()))
def test_the_documented_commands_parse(arguments: list[str]) -> None:
    """Option names and types; nothing runs."""
    name, *rest = arguments
    command = command_of(name)
    context = command.make_context(name, [part for part in rest if part != "..."])
    assert context.params


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_an_old_option(page: Path) -> None:
    """Where an option stands behind a command's name on the same line."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        for name in re.findall(r"vllm-asd (\w+)", line)[:1]:
            behind = line.split(f"vllm-asd {name}", 1)[1].split("vllm serve")[0]
            assert not set(re.findall(r"--[a-z][a-z-]*", behind)) & RENAMED.get(name, {}).keys(), line


@pytest.fixture
def guarded() -> Iterator[tuple[str, list[str | None]]]:
    """A server that notes each request's key and has nothing else to say."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(401)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", keys
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("by", ["option", "environment"])
@pytest.mark.parametrize("name", ["explain", "explain-model", "plan", "audit", "calibrate"])
def test_the_key_reaches_the_server(
    name: str, by: str, guarded: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, keys = guarded
    monkeypatch.setenv("VLLM_API_KEY", "secret" if by == "environment" else "another")
    data = tmp_path / "calib.jsonl"
    data.write_text("".join(json.dumps({"id": i, "prompt": f"{i}?"}) + "\n" for i in range(4)))
    speculation = '{"method": "ngram", "num_speculative_tokens": 3}'
    if name in ("audit", "calibrate"):
        pytest.importorskip("lm_eval" if name == "audit" else "openai")
    arguments = {
        "explain": ["explain", "--prompt", "x"],
        "explain-model": ["explain", "--prompt", "x", "--served-model", "m"],
        "plan": ["plan", "--draft-cost", "0.1"],
        "audit": ["audit", "--data", "builtin", "--output", str(tmp_path / "out")],
        "calibrate": [
            *("calibrate", "--data", str(data), "--output", str(tmp_path / "out"), "--model", "m"),
            *("--freeze", str(tmp_path / "frozen.yaml"), "--speculative-config", speculation),
        ],
    }[name]
    key = ["--api-key", "secret"] if by == "option" else []
    result = CliRunner().invoke(cli.app, [*arguments, "--url", url, *key])
    assert result.exit_code == 1, result.stderr
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr
    assert set(keys) == {"Bearer secret"}
