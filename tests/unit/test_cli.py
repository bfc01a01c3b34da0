"""The command `vllm-asd`: subcommands load when they run, and get every argument behind their name."""

import sys
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from vllm_asd import cli


@pytest.fixture
def fake_subcommand(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm_asd.cli.fake")
    app = typer.Typer()

    @app.command()
    def main(name: str, loud: bool = False) -> None:
        """Greet somebody, at length."""
        typer.echo(f"hello {name}{'!' if loud else ''}")

    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setattr(cli.app, "registered_commands", list(cli.app.registered_commands))
    cli._register("fake", "Greet.")
    monkeypatch.setitem(sys.modules, "vllm_asd.cli.fake", module)


@pytest.mark.usefixtures("fake_subcommand")
class TestSubcommand:
    def test_is_listed_with_its_summary(self) -> None:
        assert "Greet." in CliRunner().invoke(cli.app, ["--help"]).output

    def test_gets_its_arguments(self) -> None:
        result = CliRunner().invoke(cli.app, ["fake", "--loud", "you"])
        assert (result.exit_code, result.output) == (0, "hello you!\n")

    def test_has_its_own_help(self) -> None:
        result = CliRunner().invoke(cli.app, ["fake", "--help"])
        assert result.exit_code == 0
        assert "at length" in result.output

    def test_its_exit_code_is_the_commands(self) -> None:
        assert CliRunner().invoke(cli.app, ["fake", "--no-such"]).exit_code == 2


def test_every_offered_subcommand_exists() -> None:
    offered = {command.name for command in cli.app.registered_commands}
    assert offered <= set(cli.SUBCOMMANDS)
