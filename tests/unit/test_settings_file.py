"""A folder of results keeps to the settings it was begun with."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from vllm_asd.tools.settings_file import keep_settings

SETTINGS: dict[str, Any] = {
    "model": "target",
    "limits": {"asd_budget": 2.0, "asd_gate": 0.5},
    "speculations": [{"label": "ngram", "config": {"k": 5}}],
    "repeats": 2,
    "trace": None,
}


def test_the_same_settings_go_on_and_leave_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "settings.json"
    keep_settings(path, SETTINGS)
    begun = path.stat()
    # JSON has no tuples.
    keep_settings(path, {**SETTINGS, "speculations": tuple(SETTINGS["speculations"])})
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (begun.st_ino, begun.st_mtime_ns)
    assert json.loads(path.read_text()) == SETTINGS
    assert [file.name for file in path.parent.iterdir()] == ["settings.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "other"}, 'model="target", not "other"'),
        ({"trace": "t.jsonl"}, 'trace=null, not "t.jsonl"'),
        ({"new": 1}, "new=null, not 1"),
        ({"limits": {"asd_budget": 2.0, "asd_gate": 0.25}}, "limits.asd_gate=0.5, not 0.25"),
        ({"limits": {"asd_budget": 2.0}}, "limits.asd_gate=0.5, not null"),
        ({"speculations": [{"label": "ngram", "config": {"k": 7}}]}, "speculations[0].config.k=5, not 7"),
        ({"speculations": []}, 'speculations=[{"label": "ngram", "config": {"k": 5}}], not []'),
        ({"model": "m" * 99}, f'model="target", not "{"m" * 56}...'),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "out" / "settings.json"
    keep_settings(path, SETTINGS)
    line = f"{path.parent} was begun with {said}: give the same, or another --output"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        keep_settings(path, {**SETTINGS, **change}, may_differ=("repeats",))
    assert json.loads(path.read_text()) == SETTINGS


def test_what_may_differ_is_brought_up_to_date_and_what_is_not_asked_for_stays(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    keep_settings(path, {**SETTINGS, "note": "of an older version"})
    keep_settings(path, {**SETTINGS, "repeats": 5}, may_differ=("repeats",))
    assert json.loads(path.read_text()) == {**SETTINGS, "repeats": 5, "note": "of an older version"}


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"model": "tar')
    with pytest.raises(ValueError, match=r"settings\.json is not a JSON object .*: give another --output$"):
        keep_settings(path, SETTINGS)
