"""The option `--data NAME=FILE.jsonl`, which several commands take."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataFile:
    """One `--data NAME=FILE.jsonl`."""

    name: str
    path: Path

    @property
    def sha256(self) -> str:
        """Of the file."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def read_data(entries: Sequence[str]) -> list[DataFile]:
    """Part names from files; a path may hold a `=`.

    Raises:
        ValueError: No name, no such file, or a name stands twice; one line that names the entry and the fix.
    """
    files: dict[str, DataFile] = {}
    for entry in entries:
        name, _, path = entry.partition("=")
        if not (name and Path(path).is_file()):
            raise ValueError(f"--data {entry}: give NAME=FILE.jsonl with a file that exists")
        if name in files:
            raise ValueError(f"--data {entry}: {name} stands twice; give each file its own NAME")
        files[name] = DataFile(name, Path(path))
    return list(files.values())
