"""`vllm-asd bench`: bad input is one line that names the option, before anything starts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_asd.cli import app as commands
from vllm_asd.cli.bench import app
from vllm_asd.tools.bench.settings import (
    BenchError,
    check_server_args,
    read_speculations,
    split_server_config,
)

pytest.importorskip("matplotlib")
pytest.importorskip("pandas")
PAIR = ("--model", "m", "--method", "ngram")


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PAIR, "--concurrency", "1,x"), "--concurrency: expected whole numbers above 0"),
        ((*PAIR, "--concurrency", "0"), "--concurrency: expected whole numbers above 0"),
        (("--model", "m"), "give --speculative-config, or --method"),
        ((*PAIR, "--speculative-config", "{}"), "not both"),
        (("--model", "m", "--speculative-config", "{"), "--speculative-config is not a JSON object but {"),
        (("--model", "m", "--speculative-config", "{}"), '"num_speculative_tokens" must be a whole number'),
        (
            (*PAIR, "--data", "missing.jsonl"),
            "--data missing.jsonl: give NAME=FILE.jsonl with a file that exists",
        ),
        ((*PAIR, "--server-config", "missing.yaml"), "--server-config: can't read missing.yaml"),
        ((*PAIR, "--dataset-name", "random", "--trace", "x"), "--trace needs prompts"),
        (("--model", "m", "--method", "eagle3"), "eagle3 needs a draft model or head: give --drafter"),
        ((*PAIR, "--", "--port", "1"), "--port can't stand behind `--`"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rejection_sample_method": "fly"}, 'leave it out, bench sets "asd"'),
        ({"asd_budget": 0}, "ASD is strict, nothing to compare"),
        ({"asd_mode": "shadow"}, "ASD is strict, nothing to compare"),
        ({"asd_gate": -1}, "asd_gate=-1 is not allowed"),
    ],
)
def test_asd_settings_that_leave_nothing_to_measure_are_refused(
    keys: dict[str, object], message: str
) -> None:
    text = json.dumps({"method": "ngram", "num_speculative_tokens": 3, **keys})
    with pytest.raises(BenchError, match=message):
        read_speculations([text], None, None, 5)


def test_the_same_method_twice_gets_two_names() -> None:
    texts = [
        json.dumps({"method": "eagle3", "model": "org/head", "num_speculative_tokens": k}) for k in (3, 5)
    ]
    found = read_speculations(texts, None, None, 5)
    assert [item.label for item in found] == ["eagle3", "eagle3-2"]
    assert all(item.config["rejection_sample_method"] == "asd" for item in found)


def test_a_serve_config_file_gives_the_model_the_drafter_and_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: org/target\nport: 8000\ndtype: bfloat16\nenforce_eager: true\n"
        "speculative-config:\n  method: eagle3\n  model: org/head\n  num_speculative_tokens: 7\n"
    )
    model, speculations, rest = split_server_config(path)
    assert model == "org/target"
    assert json.loads(speculations[0])["num_speculative_tokens"] == 7
    assert rest == ["--dtype", "bfloat16", "--enforce-eager"]
    assert check_server_args(rest) == tuple(rest)


def test_the_servers_arguments_pass_through_the_command_group() -> None:
    result = CliRunner().invoke(commands, ["bench", *PAIR, "--", "--enforce-eager", "--port", "1"])
    assert "--port can't stand behind `--`" in result.stderr


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "160"})
    assert "vllm-asd bench --concurrency 1,4,16" in result.output
