"""Every way to give `--speculative-config`, through vLLM's own parser, and what becomes of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_asd.config import AsdConfig, AsdConfigError, split_speculative_config

NATIVE = '"method": "ngram", "num_speculative_tokens": 4'
ASD = f'{NATIVE}, "rejection_sample_method": "asd"'
OPTION = "--speculative-config"

ACCEPTED = {
    "JSON": [OPTION, f'{{{ASD}, "asd_budget": 2.5}}'],
    "JSON, =": [f'{OPTION}={{{ASD}, "asd_budget": 2.5}}'],
    "-sc": ["-sc", f'{{{ASD}, "asd_budget": 2.5}}'],
    "dotted": [
        f"{OPTION}.method=ngram",
        f"{OPTION}.num_speculative_tokens=4",
        f"{OPTION}.rejection_sample_method=asd",
        f"{OPTION}.asd_budget=2.5",
    ],
    "dotted, apart": [
        *(f"{OPTION}.method", "ngram"),
        *(f"{OPTION}.num_speculative_tokens", "4"),
        *(f"{OPTION}.rejection_sample_method", "asd"),
        *(f"{OPTION}.asd_budget", "2.5"),
    ],
    "-sc, dotted": [
        "-sc.method=ngram",
        "-sc.num_speculative_tokens=4",
        "-sc.rejection_sample_method=asd",
        "-sc.asd_budget=2.5",
    ],
    "dashes in the keys": [OPTION, f'{{{NATIVE}, "rejection-sample-method": "asd", "asd-budget": 2.5}}'],
}

REFUSED = {
    "typo": (f'{ASD}, "asd_bugdet": 2', "asd_bugdet is not an ASD key; known keys: asd_budget, "),
    "no method": (f'{NATIVE}, "asd_budget": 2', 'asd_budget needs "rejection_sample_method": "asd"'),
    "method in upper case": (
        f'{NATIVE}, "rejection_sample_method": "ASD", "asd_budget": 2',
        'asd_budget needs "rejection_sample_method": "asd"',
    ),
    "word in upper case": (
        f'{ASD}, "asd_mode": "SHADOW"',
        "asd_mode='SHADOW' is not allowed: send 'enforce' or 'shadow'",
    ),
    "string": (
        f'{ASD}, "asd_budget": "2"',
        "asd_budget='2' is not allowed: asd_budget must be a finite number >= 0",
    ),
    "negative": (
        f'{ASD}, "asd_gate": -1',
        "asd_gate=-1 is not allowed: asd_gate must be a finite number >= 0",
    ),
    "NaN": (
        f'{ASD}, "asd_budget": NaN',
        "asd_budget=nan is not allowed: asd_budget must be a finite number >= 0",
    ),
    "Infinity": (
        f'{ASD}, "asd_budget": Infinity',
        "asd_budget=inf is not allowed: asd_budget must be a finite number >= 0",
    ),
    "true": (
        f'{ASD}, "asd_block_cap": true',
        "asd_block_cap=True is not allowed: asd_block_cap must be an integer from 0 to 128",
    ),
    "fraction": (
        f'{ASD}, "asd_block_cap": 1.5',
        "asd_block_cap=1.5 is not allowed: asd_block_cap must be an integer from 0 to 128",
    ),
    "literal quotes": (
        f'{ASD}, "asd_mode": "\'shadow\'"',
        "is not allowed: send 'enforce' or 'shadow'",
    ),
}


@pytest.fixture(scope="module")
def parser() -> FlexibleArgumentParser:
    return make_arg_parser(FlexibleArgumentParser())


def parse(parser: FlexibleArgumentParser, arguments: Sequence[str]) -> Any:
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", "m", *arguments]))


def check_accepted(engine_args: Any) -> None:
    native, asd = split_speculative_config(engine_args.speculative_config)
    assert native == {"method": "ngram", "num_speculative_tokens": 4}
    assert asd == AsdConfig(asd_budget=2.5)


@pytest.mark.parametrize("arguments", ACCEPTED.values(), ids=ACCEPTED)
def test_all_ways_mean_the_same(parser: FlexibleArgumentParser, arguments: list[str]) -> None:
    check_accepted(parse(parser, arguments))


@pytest.mark.parametrize("given", ["mapping", "JSON in literal quotes"])
def test_a_yaml_file_means_the_same(parser: FlexibleArgumentParser, tmp_path: Path, given: str) -> None:
    body = (
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 4\n"
        "  rejection_sample_method: asd\n  asd_budget: 2.5\n"
    )
    if given != "mapping":
        body = f"speculative-config: '{{{ASD}, \"asd_budget\": 2.5}}'\n"
    file = tmp_path / "server.yaml"
    file.write_text(body)
    check_accepted(parse(parser, ["--config", str(file)]))


@pytest.mark.parametrize(("keys", "message"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_one_line_that_names_the_key(
    parser: FlexibleArgumentParser, keys: str, message: str
) -> None:
    engine_args = parse(parser, [OPTION, f"{{{keys}}}"])
    with pytest.raises(AsdConfigError) as refused:
        split_speculative_config(engine_args.speculative_config)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_quotes_that_the_shell_left_in_are_refused_by_vllm(
    parser: FlexibleArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of arguments, or Windows: the quotes arrive with the JSON."""
    with pytest.raises(SystemExit):
        parse(parser, [OPTION, f"'{{{ASD}}}'"])
    assert OPTION in capsys.readouterr().err


def test_without_the_method_vllm_gets_its_keys_unchanged(parser: FlexibleArgumentParser) -> None:
    native, asd = split_speculative_config(parse(parser, [OPTION, f"{{{NATIVE}}}"]).speculative_config)
    assert asd is None
    assert native == {"method": "ngram", "num_speculative_tokens": 4}


def test_the_users_additional_config_is_kept(parser: FlexibleArgumentParser) -> None:
    """Beside ours while the configuration is made; vLLM's part is stood in for."""
    from vllm_asd.upstream import engine_args as seam

    given = parse(parser, [OPTION, f"{{{ASD}}}", "--additional-config", '{"mine": 1}'])
    original = dict(given.speculative_config)
    seen: dict[str, Any] = {}

    def create_speculative_config(self: Any) -> None:
        seen.update(additional=dict(self.additional_config), speculative=dict(self.speculative_config))

    seam._wrap_create_speculative_config(create_speculative_config)(given)
    assert seen["additional"] == {"mine": 1, seam.CONFIG_KEY: AsdConfig().in_force()}
    assert "rejection_sample_method" not in seen["speculative"]
    assert given.speculative_config == original
