"""The published table of patches is the records."""

from pathlib import Path

from tests.contract.table import render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "patches.md"


def test_the_page_is_current() -> None:
    """Rewrite it with `python -m tests.contract.table > docs/patches.md`."""
    assert PAGE.read_text() == render()
