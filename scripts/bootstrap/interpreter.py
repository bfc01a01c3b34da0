"""Choose the Python that `.venv` is made from."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bootstrap.errors import SetupError

# The order of preference: most wheels of vLLM's CPU build and of torch exist for the first.
SUPPORTED = ((3, 11), (3, 12), (3, 13))

_PROBE = """
import json, pathlib, sys, sysconfig
try:
    import ensurepip, venv
    can_make_venv = True
except ImportError:
    can_make_venv = False
headers = pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file()
print(json.dumps([sys.version_info[:2], can_make_venv, headers]))
"""


class Interpreter(NamedTuple):
    """One Python found on this machine.

    Attributes:
        path: The executable.
        version: Major and minor version.
        can_make_venv: Whether `venv` with pip works (Debian splits it off into a package).
        has_headers: Whether `Python.h` is there; torch's and triton's compilers need it.
    """

    path: str
    version: tuple[int, int]
    can_make_venv: bool
    has_headers: bool


def candidates(search_path: str) -> Iterator[str]:
    """Every `python3.X` of a supported version on the search path, the first choice first."""
    for major, minor in SUPPORTED:
        for folder in search_path.split(os.pathsep):
            executable = Path(folder or ".", f"python{major}.{minor}")
            if os.access(executable, os.X_OK):
                yield str(executable)


def probe(executable: str) -> Interpreter | None:
    """Ask an executable what it is; None where it doesn't run (a pyenv shim without its version, say)."""
    try:
        answer = subprocess.run(
            [executable, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        version, can_make_venv, has_headers = json.loads(answer)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(executable, (version[0], version[1]), can_make_venv, has_headers)


def choose(found: Iterable[Interpreter]) -> Interpreter:
    """The best of the interpreters found: by version first, one with headers before one without.

    Raises:
        SetupError: If none is of a supported version, or none of them can make a virtual environment.
    """
    supported = [python for python in found if python.version in SUPPORTED]
    if not supported:
        raise SetupError(
            "needs Python 3.11, 3.12 or 3.13, and found none on PATH; install python3.11 and try again"
        )
    usable = [python for python in supported if python.can_make_venv]
    if not usable:
        path, (major, minor) = supported[0][:2]
        raise SetupError(
            f"{path} has no working venv module; on Debian or Ubuntu: apt install python{major}.{minor}-venv"
        )
    return min(usable, key=lambda python: (SUPPORTED.index(python.version), not python.has_headers))


def find() -> Interpreter:
    """Look through PATH and choose.

    Raises:
        SetupError: As `choose`.
    """
    probed = (probe(path) for path in candidates(os.environ.get("PATH", os.defpath)))
    return choose([python for python in probed if python is not None])
