"""Files of JSON lines that a killed run resumes from: a kill costs at most the line it fell on."""

import json
from pathlib import Path
from typing import IO, Any


def read_lines(path: Path) -> list[Any]:
    """The values of a file, none if it isn't there; an unfinished last line is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]


def open_to_append(path: Path) -> IO[str]:
    """Open a file, made if it isn't there, behind its last finished line.

    Else what is appended next would stand behind half a line, and be lost with it.
    """
    if path.exists():
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            path.write_bytes(content[: content.rfind(b"\n") + 1])
    return path.open("a", encoding="utf-8")
