"""The raw responses of an audit, appended as they come: what a killed run resumes from."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from vllm_asd.tools.json_lines import open_to_append, read_lines

Record = dict[str, Any]


class RecordFile:
    """A file of JSON lines, each under a key; a line that a kill cut off is dropped.

    What it holds names prompts (as token ids), so it stays beside lm-eval's own files.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there; the file is made if it isn't."""
        self._records: dict[str, Record] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for record in read_lines(path):
            self._records[record.pop("key")] = record
        self._file = open_to_append(path)

    def get(self, key: str) -> Record | None:
        """What was kept under a key, or None."""
        return self._records.get(key)

    def add(self, key: str, record: Record) -> None:
        """Keep a record; it is on disk when this returns."""
        self._file.write(json.dumps({"key": key, **record}, ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._records[key] = record

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def record_key(*parts: object) -> str:
    """A key from anything that JSON can write."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
