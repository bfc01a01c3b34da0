"""The file of answered items: what is written comes back, and what is wrong in it is named."""

from pathlib import Path

import pytest

from tests.audit_items import GOOD, task_items
from vllm_asd.tools.audit.items import Item, read_items, write_items


def test_what_is_written_comes_back_and_only_an_unfinished_line_is_lost(tmp_path: Path) -> None:
    items, path = task_items("gsm8k", 3, GOOD), tmp_path / "items.jsonl"
    write_items(path, items[:4])
    with path.open("a") as file:
        file.write(items[4].model_dump_json()[:50])
    assert read_items(path) == items[:4]
    write_items(path, items)
    assert read_items(path) == items


def test_names_the_line_that_is_no_item(tmp_path: Path) -> None:
    items, path = task_items("gsm8k", 1, GOOD), tmp_path / "items.jsonl"
    write_items(path, items)
    path.write_text(path.read_text() + items[0].model_dump_json().replace('"score":', '"store":') + "\n")
    with pytest.raises(ValueError, match=r"items\.jsonl:4: score: Field required"):
        read_items(path)


def test_refuses_an_item_that_stands_there_twice(tmp_path: Path) -> None:
    item, path = task_items("gsm8k", 1, GOOD)[0], tmp_path / "items.jsonl"
    write_items(path, [item, item])
    with pytest.raises(ValueError, match=r":2: gsm8k/0/control stands twice"):
        read_items(path)


@pytest.mark.parametrize(
    ("field", "value"), [("score", 1.5), ("loglikelihood", float("nan")), ("arm", "fast")]
)
def test_refuses_what_cannot_be(field: str, value: object) -> None:
    given = task_items("gsm8k", 1, GOOD)[0].model_dump() | {field: value}
    with pytest.raises(ValueError, match=field):
        Item.model_validate(given)
