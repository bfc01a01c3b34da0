"""The files under configs/serve: vLLM's own parser and configuration take each of them, and so do we."""

import dataclasses
import typing
from pathlib import Path

import pytest
import yaml

pytest.importorskip("vllm")

from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_asd.config import AsdConfig, split_speculative_config

FOLDER = Path(__file__).parents[2] / "configs" / "serve"
FILES = sorted(FOLDER.glob("*.yaml"))
GATED = "meta-llama/"
PAIRS = {
    "qwen3-8b-dspark": ("Qwen/Qwen3-8B", "dspark", 7),
    "qwen3-14b-dspark": ("Qwen/Qwen3-14B", "dspark", 7),
    "llama-3.1-8b-eagle3": ("meta-llama/Llama-3.1-8B-Instruct", "eagle3", 5),
    "qwen2.5-7b-medusa": ("Qwen/Qwen2.5-7B-Instruct", "medusa", 3),
    "deepseek-v4-flash-dspark": ("deepseek-ai/DeepSeek-V4-Flash-DSpark", "dspark", 5),
    "smollm2-135m-eagle3": ("smollm2-135m-instruct", "eagle3", 5),
}


@pytest.fixture(scope="module")
def parser() -> FlexibleArgumentParser:
    return make_arg_parser(FlexibleArgumentParser())


def test_one_file_per_pair_of_the_paper() -> None:
    assert {path.stem for path in FILES} == set(PAIRS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_vllm_takes_the_file_as_it_is(path: Path, parser: FlexibleArgumentParser) -> None:
    """A misspelt argument, a wrong type or a key that this vLLM does not know fails here, not at a user's."""
    parsed = parser.parse_args(["--config", str(path)])
    arguments = AsyncEngineArgs.from_cli_args(parsed)
    native, asd = split_speculative_config(arguments.speculative_config)

    model, method, num_draft_tokens = PAIRS[path.stem]
    assert arguments.model == model
    assert (native["method"], native["num_speculative_tokens"]) == (method, num_draft_tokens)
    assert isinstance(asd, AsdConfig)
    assert not asd.limits.is_strict
    assert asd.asd_mode == "enforce"
    assert set(native) <= {field.name for field in dataclasses.fields(SpeculativeConfig)}
    assert method in _words(SpeculativeMethod)
    # Without it nobody could see what was relaxed. What calibrate froze stays as the audit needs it.
    frozen = path.with_suffix(".calibration.json").exists()
    assert arguments.per_request_spec_decode_metrics == ("detailed" if frozen else "summary")
    # vLLM's default is the model's own maximum, whose KV cache may not fit.
    assert arguments.max_model_len == (2048 if frozen else 8192)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_file_says_where_its_limits_are_from(path: Path) -> None:
    comment = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    assert "Source of the limits:" in comment
    assert f"vllm serve --config {path.name}" in comment


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_first_line_says_what_to_have_before_a_start(path: Path) -> None:
    """Folders that the user must bring, and gated models; a name without an owner is a folder."""
    first = path.read_text().splitlines()[0]
    arguments = yaml.safe_load(path.read_text())
    models = [arguments["model"], arguments["speculative-config"].get("model", arguments["model"])]
    folders = [model for model in models if "/" not in model]
    assert all(folder in first for folder in folders)
    assert first.startswith("# Absent folder") == bool(folders)
    assert first.startswith("# Gated") == any(model.startswith(GATED) for model in models)
    if not folders and not first.startswith("# Gated"):
        assert first.startswith("# Downloaded from the hub")


def _words(literal: object) -> set[str]:
    """Every word of nested `Literal`s and unions."""
    arguments = typing.get_args(literal)
    return {w for a in arguments for w in ({a} if isinstance(a, str) else _words(a))}
