"""The option `--data`: files of prompts, a folder of sets, or `builtin`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_asd.tools.json_object import read_text
from vllm_asd.tools.usage import BadUsage

BUILTIN = "builtin"


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
    """Sets of prompts from files; a path may hold a `=`, and a file without a name has its own as one.

    Raises:
        BadUsage: No such file, an unreadable one, or a name stands twice; one line that names entry and fix.
    """
    files: dict[str, DataFile] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not equals and Path(entry).suffix == ".jsonl":
            name, path = Path(entry).stem, entry
        if not (name and Path(path).is_file()):
            raise BadUsage(f"--data {entry}: give NAME=FILE.jsonl with a file that exists")
        if name in files:
            raise BadUsage(f"--data {entry}: {name} stands twice; give each file its own NAME")
        read_text(f"--data {entry}", Path(path))
        files[name] = DataFile(name, Path(path))
    return list(files.values())


def read_file(entries: Sequence[str]) -> Path | None:
    """The only file, its name left aside; None without an entry, or for `builtin`.

    Raises:
        BadUsage: Several entries, or no such file.
    """
    if len(entries) > 1:
        raise BadUsage("--data stands twice: this command takes one file")
    if not entries or entries[0] == BUILTIN:
        return None
    return read_data(entries)[0].path


def read_folder(entries: Sequence[str]) -> Path | str | None:
    """The folder of sets, or the word `builtin`; None without an entry.

    Raises:
        BadUsage: Several entries, or no such folder.
    """
    if len(entries) > 1:
        raise BadUsage("--data stands twice: this command takes one folder")
    if not entries or entries[0] == BUILTIN:
        return entries[0] if entries else None
    if not Path(entries[0]).is_dir():
        raise BadUsage(f"--data {entries[0]}: give a folder with SET/audit.jsonl, or `{BUILTIN}`")
    return Path(entries[0])
