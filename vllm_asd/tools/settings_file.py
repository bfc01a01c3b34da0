"""The settings that a folder of results was begun with, so that a run that goes on in it has the same."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vllm_asd.tools.json_object import read_object, shortened
from vllm_asd.tools.whole_file import write_whole


def keep_settings(path: Path, settings: Mapping[str, Any], may_differ: Collection[str] = ()) -> None:
    """Note the settings in a folder, made if it isn't there; refuse a folder that was begun with others.

    Args:
        path: The file in that folder.
        settings: What must not change from run to run: values that JSON can write.
        may_differ: Names of those that may; the file then has the latest.

    Raises:
        ValueError: One of them is another (null and absent are the same), or the file is damaged; one line.
    """
    now = json.loads(json.dumps(settings))
    then: dict[str, Any] = {}
    if path.exists():
        then = read_object(path, path.read_text(encoding="utf-8"), "give another --output")
        for name, value in now.items():
            if name not in may_differ and then.get(name) != value:
                where, old, new = _first_difference(name, then.get(name), value)
                raise ValueError(
                    f"{path.parent} was begun with {where}={old}, not {new}: "
                    "give the same, or another --output"
                )
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or {**then, **now} != then:
        write_whole(path, json.dumps({**then, **now}, indent=2) + "\n")


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
