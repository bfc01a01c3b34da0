"""Each `vllm serve` line of README and docs is one that the installed vLLM's own parser takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_asd.config import split_speculative_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What the pages leave to the reader.
VARIABLES = {"$MODEL": "target", "$HEAD": "head", "$HEAD_IP": "10.0.0.1"}
SHELL = re.compile(r"```bash\n(.*?)```|((?:^ {4}[^\n]*\n)+)", re.DOTALL | re.MULTILINE)


def commands(block: str) -> Iterator[list[str]]:
    """The commands of a shell block; one goes on over the next line where a quote is open."""
    pending = ""
    for line in block.replace("\\\n", " ").splitlines():
        pending += line + "\n"
        try:
            parts = shlex.split(pending, comments=True)
        except ValueError:
            continue
        pending = ""
        yield parts


def serve_lines() -> Iterator[Any]:
    for page in PAGES:
        variables = dict(VARIABLES)
        for match in SHELL.finditer(page.read_text(encoding="utf-8")):
            for parts in commands(match[1] or match[2]):
                if len(parts) == 1 and (assigned := re.fullmatch(r"(\w+)=(.+)", parts[0], re.DOTALL)):
                    variables[f"${assigned[1]}"] = assigned[2]
                # "..." stands for the reader's own arguments; a --config file is not there.
                if parts[:2] == ["vllm", "serve"] and not {"...", "--config"} & set(parts):
                    yield pytest.param([variables.get(part, part) for part in parts[2:]], id=page.name)


@pytest.fixture(scope="module")
def parser() -> FlexibleArgumentParser:
    return make_arg_parser(FlexibleArgumentParser())


LINES = list(serve_lines())


def test_the_pages_show_servers() -> None:
    assert {"README.md", "quickstart.md", "distributed.md", "phases.md", "install.md"} <= {
        parameter.id for parameter in LINES
    }


@pytest.mark.parametrize("arguments", LINES)
def test_vllm_takes_the_line(arguments: list[str], parser: FlexibleArgumentParser) -> None:
    arguments_of_engine = AsyncEngineArgs.from_cli_args(parser.parse_args(arguments))
    native, asd = split_speculative_config(arguments_of_engine.speculative_config)
    assert asd is not None
    assert {"method", "num_speculative_tokens"} <= native.keys()
