"""A task's documents from a folder of JSON lines: `<folder>/<source>/audit.jsonl`."""

import json
from pathlib import Path
from typing import Any

import datasets

from vllm_asd.tools.json_object import read_text

FILE = "audit.jsonl"


class NoDocuments(ValueError):
    """A task's file is missing, empty or wrong; the message is one line."""


def read(
    data_folder: str, source: str, id_prefix: str = "", fields: tuple[str, ...] = (), **_: Any
) -> dict[str, datasets.Dataset]:
    """Read one set; lm-eval calls this with the task's `metadata`.

    Args:
        data_folder: Holds one folder per set.
        source: The set.
        id_prefix: Only documents whose id starts like this, where a set holds several tasks.
        fields: What to keep of a line's `meta`.

    Returns:
        Split `test`, in the file's order: `id`, `prompt`, `gold` (text; empty where there is none), and
        `fields`.

    Raises:
        NoDocuments: The file is missing or has no such line.
    """
    path = Path(data_folder) / source / FILE
    if not path.is_file():
        raise NoDocuments(f"no {source}/{FILE} in {data_folder}: correct --data, or leave that task out")
    rows = []
    for number, line in enumerate(read_text("--data", path).strip().split("\n"), start=1):
        try:
            row = json.loads(line)
            if row["id"].startswith(id_prefix):
                rows.append(_document(row, fields))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise NoDocuments(
                f"{path}:{number} is no document with id, prompt, answer and meta ({error!r})"
            ) from None
    if not rows:
        raise NoDocuments(f"{path} holds no document {f'named {id_prefix}...' if id_prefix else 'at all'}")
    return {"test": datasets.Dataset.from_list(rows)}


def _document(row: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    meta = row.get("meta") or {}
    gold = meta.get("final") or row.get("answer") or ""
    return {
        "id": row["id"],
        "prompt": row["prompt"],
        "gold": str(gold),
        **{field: meta[field] for field in fields},
    }
