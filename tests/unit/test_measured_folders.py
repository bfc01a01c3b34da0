"""`python -m eval.rounds` and `eval.shadow`: a folder of answers keeps to the settings it was begun with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

import typer
from typer.testing import CliRunner, Result

from eval.rounds import __main__ as rounds
from eval.shadow import __main__ as shadow
from eval.shadow.measure import Block, Run
from vllm_asd.tools.answers import Answer

Command = Callable[..., Result]


class NoServer:
    """In place of vLLM's: its port is not asked."""

    base_url = "http://nowhere"

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> "NoServer":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def answer(arm: str) -> Answer:
    strict = None if arm.startswith("strict") else 1
    return Answer("maths", "1", arm, 4, 2, 2, strict, 0, 0.0, None, "d", [1, 2, 3, 4], "stop")


@pytest.fixture(params=["rounds", "shadow"])
def command(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run one of the two into `tmp_path / "out"`; no engine, and each prompt has been answered."""

    async def collected(*_: Any) -> list[Answer]:
        return [answer(arm) for arm in rounds.ARMS]

    def measured(*_: Any) -> list[Run]:
        return [Run("maths", "1", mode, [Block(1, 1, 1, [])], [1, 2]) for mode in ("shadow", "enforce")]

    monkeypatch.setattr(rounds, "VllmServer", NoServer)
    monkeypatch.setattr(rounds, "prepare_smollm2", lambda folder: folder)
    monkeypatch.setattr(rounds, "collect", collected)
    monkeypatch.setattr(shadow, "enter_environment", lambda *_: None)
    monkeypatch.setattr(shadow, "measure", measured)
    app = typer.Typer()
    app.command()({"rounds": rounds, "shadow": shadow}[request.param].main)
    data = tmp_path / "maths.jsonl"
    data.write_text(json.dumps({"id": "1", "prompt": "2 + 2"}) + "\n")

    def run(*more: str) -> Result:
        output = tmp_path / "out"
        arguments = [f"--data=maths={data}", f"--drafter={tmp_path / 'head'}", f"--output={output}", *more]
        return CliRunner().invoke(app, arguments)

    return run


def settings(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "out" / "settings.json").read_text())
    return found


def test_notes_what_the_answers_depend_on(command: Command, tmp_path: Path) -> None:
    """In the summary as well, and nowhere where on this machine the drafter lies."""
    done = command("--max-tokens=64")
    assert done.exit_code == 0, done.output
    kept = settings(tmp_path)
    assert (kept["max_tokens"], kept["speculation"]["model"]) == (64, "head")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {**summary, **kept} == summary


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--max-tokens=64", "max_tokens={}, not 64"),
        ("--draft-tokens=7", "speculation.num_speculative_tokens=5, not 7"),
        ("--drafter=other", 'speculation.model="head", not "other"'),
    ],
)
def test_goes_on_with_the_same_settings_alone(command: Command, tmp_path: Path, more: str, said: str) -> None:
    assert command().exit_code == 0
    begun = settings(tmp_path)
    refused = command(more)
    assert refused.exit_code == 1
    line = f": {tmp_path / 'out'} was begun with {said.format(begun['max_tokens'])}"
    assert refused.output.endswith(f"{line}: give the same, or another --output\n")
    assert refused.output.count("\n") == 1
    assert settings(tmp_path) == begun
    assert command("--prompts=99").exit_code == 0


@pytest.mark.parametrize("command", ["rounds"], indirect=True)
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--gate=0.5", "speculation.asd_gate=0.25, not 0.5"),
        ("--pricing=realized", 'speculation.asd_pricing="remaining", not "realized"'),
    ],
)
def test_answers_under_other_limits_are_not_mixed(command: Command, more: str, said: str) -> None:
    assert command().exit_code == 0
    assert said in command(more).output


def test_a_folder_of_before_there_were_settings_goes_on(command: Command, tmp_path: Path) -> None:
    """As elsewhere: it takes over those of the first run that goes on in it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text("{}")
    assert command("--max-tokens=64").exit_code == 0
    assert settings(tmp_path)["max_tokens"] == 64


def test_a_wrong_data_option_is_one_line_and_leaves_no_folder(command: Command, tmp_path: Path) -> None:
    refused = command("--data=chat=nowhere.jsonl")
    assert refused.exit_code == 1
    assert refused.output.endswith(
        ": --data chat=nowhere.jsonl: give NAME=FILE.jsonl with a file that exists\n"
    )
    assert refused.output.count("\n") == 1
    assert not (tmp_path / "out").exists()
