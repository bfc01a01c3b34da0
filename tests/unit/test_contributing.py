"""CONTRIBUTING.md and SECURITY.md name targets, files and pages that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("CONTRIBUTING.md", "SECURITY.md")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)}
    paths = set(re.findall(r"`((?:vllm_asd|docs|tests|configs)/[\w./-]+)`", text))
    assert links
    assert all((ROOT / path).exists() for path in links | paths)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(
        re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / PAGES[0]).read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {"setup-dev", "check", "test"} <= named <= targets
