"""`--data NAME=FILE.jsonl`: one reading and one wording for all commands that take it."""

import re
from pathlib import Path

import pytest

from vllm_asd.tools.data_option import DataFile, read_data


def test_names_and_files_in_order(tmp_path: Path) -> None:
    """What stands behind the first `=` is the file, whatever is in its name."""
    paths = [tmp_path / "b.jsonl", tmp_path / "n=2.jsonl"]
    for path in paths:
        path.write_text("{}\n")
    found = read_data([f"maths={paths[0]}", f"chat={paths[1]}"])
    assert found == [DataFile("maths", paths[0]), DataFile("chat", paths[1])]


@pytest.mark.parametrize(
    "entry", ["nowhere.jsonl", "here.json", "maths=nowhere.jsonl", "=here.jsonl", "maths=", "maths=.", ""]
)
def test_a_wrong_entry_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.jsonl").write_text("{}\n")
    line = f"--data {entry}: give NAME=FILE.jsonl with a file that exists"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        read_data(["chat=here.jsonl", entry])


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Answers are known by it: two files would be taken for one."""
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    line = f"--data maths={path}: maths stands twice; give each file its own NAME"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        read_data([f"maths={path}", f"chat={path}", f"maths={path}"])
