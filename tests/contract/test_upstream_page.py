"""docs/upstream.md, the request to vLLM, covers every patch exactly once."""

import re
from collections import Counter
from pathlib import Path

from tests.contract.records import collect

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "upstream.md").read_text(encoding="utf-8")


def patches_by_section() -> dict[str, list[str]]:
    """The bullets that name a patch, by the heading above them."""
    sections: dict[str, list[str]] = {}
    for section in PAGE.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        sections[heading] = re.findall(r"^- `(vllm\.[\w.]+)`$", body, re.MULTILINE)
    return sections


def test_every_patch_belongs_to_one_hook_or_stays() -> None:
    named = Counter(target for targets in patches_by_section().values() for target in targets)
    assert named == Counter(patch.target.replace(":", ".") for patch in collect())


def test_each_section_removes_something() -> None:
    sections = patches_by_section()
    assert [heading.partition(":")[0] for heading in sections] == [
        *(f"Hook {number}" for number in range(1, 5)),
        "What stays",
    ]
    assert all(sections.values())


def test_the_number_of_patches_is_current() -> None:
    assert f"replaces {len(collect())} functions of vLLM" in PAGE
