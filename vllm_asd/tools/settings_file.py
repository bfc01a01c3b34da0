"""The settings that a folder of results was begun with, so that a run that goes on in it has the same."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vllm_asd.tools.json_object import read_object, shortened
from vllm_asd.tools.usage import BadUsage
from vllm_asd.tools.whole_file import write_whole


def keep_settings(path: Path, settings: Mapping[str, Any], may_differ: Collection[str] = ()) -> None:
    """Note the settings in a folder, made if it isn't there; refuse a folder that was begun with others.

    Args:
        path: The file in that folder.
        settings: What must not change from run to run: values that JSON can write.
        may_differ: Names of those that may; the file then has the latest.

    Raises:
        BadUsage: One of them is another (null and absent are the same), or the file is damaged; one line.
    """
    now = json.loads(json.dumps(settings))
    then: dict[str, Any] = {}
    if path.exists():
        then = read_object(path, path.read_text(encoding="utf-8"), "give another --output")
        for name, value in now.items():
            if name not in may_differ and then.get(name) != value:
                where, old, new = _first_difference(name, then.get(name), value)
                raise BadUsage(
                    f"{path.parent} was begun with {where}={old}, not {new}: "
                    "give the same, or another --output"
                )
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or {**then, **now} != then:
        write_whole(path, json.dumps({**then, **now}, indent=2) + "\n")


def refuse_other_folder(path: Path) -> None:
    """Refuse an output folder that something else has filled, before anything is started.

    Args:
        path: Where `keep_settings` will note the settings.

    Raises:
        BadUsage: There is a file in its place, or a folder that is not empty and has no such settings.
    """
    folder = path.parent
    if folder.exists() and not folder.is_dir():
        raise BadUsage(f"--output {folder} is a file: give a folder")
    if not folder.is_dir() or path.is_file():
        return
    # What a run makes before its settings are there: folders of its own.
    others = [entry.name for entry in folder.iterdir() if not entry.is_dir() or any(entry.iterdir())]
    if others:
        raise BadUsage(
            f"--output {folder} belongs to something else: it holds {min(others)} and no {path.name}; "
            "give another folder"
        )


def _first_difference(name: str, then: Any, now: Any) -> tuple[str, str, str]:
    """Where two values differ, down to the single key or entry, and what stands there."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in {**then, **now}:
            if then.get(key) != now.get(key):
                return _first_difference(f"{name}.{key}", then.get(key), now.get(key))
    if isinstance(then, list) and isinstance(now, list):
        for index, (old, new) in enumerate(zip(then, now, strict=False)):
            if old != new:
                return _first_difference(f"{name}[{index}]", old, new)
    return name, shortened(json.dumps(then)), shortened(json.dumps(now))
