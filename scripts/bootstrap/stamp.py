"""Remember what a finished set-up installed, so that the next one knows there is nothing to do."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

NAME = "vllm-asd-setup.json"


class Stamp(NamedTuple):
    """What `.venv` holds.

    Attributes:
        fingerprint: Hash of every file that decides what gets installed.
        root: The checkout that the editable install points to; a copied `.venv` doesn't count.
        variant: `cpu` or `gpu`.
        extras: The optional dependencies besides the variant.
    """

    fingerprint: str
    root: str
    variant: str
    extras: frozenset[str]


def fingerprint(root: Path) -> str:
    """Hash of the project file and the set-up's own code."""
    digest = hashlib.sha256()
    sources = [root / "pyproject.toml", root / "scripts" / "setup.py"]
    sources += sorted((root / "scripts" / "bootstrap").glob("*.py"))
    sources += sorted((root / "packaging").rglob("*.py"))
    for source in sources:
        digest.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def read(venv: Path) -> Stamp | None:
    """The stamp of a finished set-up; None where there is none, or one that can't be read."""
    try:
        raw = json.loads((venv / NAME).read_text(encoding="utf-8"))
        return Stamp(raw["fingerprint"], raw["root"], raw["variant"], frozenset(raw["extras"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(venv: Path, stamp: Stamp) -> None:
    """Record a finished set-up, all at once."""
    temporary = venv / (NAME + ".new")
    temporary.write_text(json.dumps({**stamp._asdict(), "extras": sorted(stamp.extras)}), encoding="utf-8")
    os.replace(temporary, venv / NAME)


def remove(venv: Path) -> None:
    """Forget the last set-up: from here until `write`, the environment is unfinished."""
    (venv / NAME).unlink(missing_ok=True)


def satisfies(stamp: Stamp | None, wanted: Stamp) -> bool:
    """Whether what is installed covers what is wanted."""
    return stamp is not None and stamp[:3] == wanted[:3] and stamp.extras >= wanted.extras
