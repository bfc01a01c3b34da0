"""How every `vllm-asd` command ends: 0 done, 1 the run failed, 2 bad usage, 3 `--fail-on`, 130 Ctrl-C.

Whatever goes wrong is one line on stderr that begins with the command's name, never a traceback.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from vllm_asd.cli.renamed import new_name
from vllm_asd.tools.usage import BadUsage

FAILED, BAD_USAGE, JUDGED, INTERRUPTED = 1, 2, 3, 130
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_EXPECTED = (ValueError, OSError, RuntimeError, ImportError)
# Their exceptions say what failed; anything else is a mistake of ours, and the line says where.
_PACKAGES = ("vllm_asd", "openai")
_LONGEST = 600
# Typer brings its own copy of click, or uses click, depending on its version.
_ClickException, _UsageError = typer.BadParameter.__mro__[2], typer.BadParameter.__mro__[1]


class Interrupted(Exception):
    """Ctrl-C. Typer would end quietly on a KeyboardInterrupt."""


class _OneLineEndings:
    """Mixed into Typer's classes of commands: their `main` ends as this module says."""

    name: str | None
    params: list[Any]
    callback: Any

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except KeyboardInterrupt as error:
            raise _with_notes(Interrupted("stopped"), error) from None

    def main(self, args: Any = None, prog_name: str | None = None, **more: Any) -> Any:
        standalone = more.pop("standalone_mode", True)
        try:
            code = super().main(args, prog_name, standalone_mode=False, **more)  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 (no command shows a traceback)
            code = self._end(error)
        code = code if isinstance(code, int) else 0
        if standalone:
            raise SystemExit(code)
        return code

    def _end(self, error: Exception) -> int:
        command = self.name or ""
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            return BAD_USAGE
        typer.echo(f"{' '.join(('vllm-asd', command)).strip()}: {_line(command, error)}", err=True)
        return exit_code(error)


class Command(_OneLineEndings, TyperCommand):  # type: ignore[misc]
    """A command of its own; `register` makes it."""


class Group(_OneLineEndings, TyperGroup):  # type: ignore[misc]
    """`vllm-asd` itself."""


def exit_code(error: Exception) -> int:
    """The status of a command that ended with this."""
    if isinstance(error, Interrupted | typer.Abort):
        return INTERRUPTED
    return BAD_USAGE if isinstance(error, BadUsage | _ClickException) else FAILED


@contextmanager
def checking() -> Iterator[None]:
    """What fails in here is what the user gave: an error becomes `BadUsage`.

    A network that fails (an OSError without a file) stays what it is.

    Raises:
        BadUsage: In place of another expected exception; its message is kept.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise BadUsage(message(error)) from None
    except ImportError:
        raise
    except Exception as error:
        if not _is_expected(error):
            raise
        raise BadUsage(message(error)) from None


@contextmanager
def keeping(output: Path) -> Iterator[None]:
    """A run that can be continued: whatever stops it, the line says so.

    Raises:
        Exception: Whatever stopped it, with a note that `output` keeps what was finished.
    """
    try:
        yield
    except (ValueError, ImportError):
        raise
    except (Exception, KeyboardInterrupt) as error:
        error.add_note(f"what was finished is kept in {output}: run the same command again to continue")
        raise


def message(error: BaseException) -> str:
    """What an exception says, on one line; that of our own that quote a log keep the log's lines."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, ImportError) and error.name:
        text = f"this needs {error.name}: pip install 'vllm-asd[eval]'"
    elif isinstance(error, _ClickException):
        text = error.format_message()  # type: ignore[attr-defined]
    else:
        text = str(error) or type(error).__name__
    if not isinstance(error, ValueError) and _package(error) == "vllm_asd":
        return text
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def _line(command: str, error: Exception) -> str:
    if isinstance(error, _UsageError):
        renamed = new_name(command, getattr(error, "option_name", None))
        if renamed is not None:
            return renamed
    text = message(error)
    if not _is_expected(error):
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        text = f"unexpected {type(error).__name__} at {place} ({text}): please report it"
    elif _package(error) == "openai":
        text = f"a request failed ({text})"
    return "; ".join([text, *getattr(error, "__notes__", ())])


def _is_expected(error: Exception) -> bool:
    own = isinstance(error, Interrupted | typer.Abort | _ClickException) or _package(error) in _PACKAGES
    subtle = isinstance(error, NotImplementedError | RecursionError)
    return own or (isinstance(error, _EXPECTED) and not subtle)


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _with_notes(error: Exception, source: BaseException) -> Exception:
    for note in getattr(source, "__notes__", ()):
        error.add_note(note)
    return error
