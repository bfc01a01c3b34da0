"""The glossary defines each word once, and every word that the docs promise."""

import re
from pathlib import Path

from vllm_asd.config import AsdConfig

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^\| \*\*(.+?)\*\*", PAGE, re.MULTILINE)


def test_each_word_is_defined_once() -> None:
    assert len(WORDS) == len(set(WORDS))


def test_the_fields_words_are_there() -> None:
    assert {
        "target",
        "draft",
        "verify",
        "accept",
        "bonus token",
        "acceptance length",
        "verification step",
        "draft block",
        "exception",
        "regret",
        "gate",
        "block cap",
        "budget",
        "strict",
    } <= set(WORDS)


def test_the_keys_it_names_exist() -> None:
    named = set(re.findall(r"`(asd_\w+)`", PAGE))
    assert "asd_budget" in named <= AsdConfig.model_fields.keys()
