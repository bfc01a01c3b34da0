"""Multiple choice, answered in words: the letter that an answer arrives at."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_asd.tools.tasks.final_answer import extract_each

_STATED = re.compile(r"(?:answer|option|choice)\b(?:\s+is)?[^A-Za-z\n]{0,6}([A-J])\b(?!')", re.IGNORECASE)
_FIRST = re.compile(r"\s*[(*]*([A-J])(?:[.):*]|\s*$)")
_STANDALONE = re.compile(r"(?:^|[\s(*])([A-J])(?:[.):*]|\s*$)", re.MULTILINE)


def prompt(document: Mapping[str, Any]) -> str:
    """The question, its lettered choices, and the form in which to answer."""
    return (
        f"{_question(document)}\n\n"
        "Say in one or two sentences why, then give the letter of the right choice on the last line."
    )


def completion_prompt(document: Mapping[str, Any]) -> str:
    """The same for a base model."""
    return f"{_question(document)}\nAnswer:"


def extract(responses: Iterable[Sequence[str]], _documents: object) -> list[list[str | None]]:
    """lm-eval's filter: the letter of each response."""
    return extract_each(responses, final_letter)


def score(document: Mapping[str, Any], results: Sequence[str | None]) -> dict[str, float]:
    """1 if the letter is the document's."""
    return {"score": float(results[0] == document["gold"])}


def final_letter(text: str) -> str | None:
    """The letter stated as the answer, else one that begins the text, else the last that stands alone."""
    if stated := _STATED.findall(text):
        return str(stated[-1]).upper()
    if begun := _FIRST.match(text):
        return begun.group(1)
    standalone = _STANDALONE.findall(text)
    return str(standalone[-1]) if standalone else None


def _question(document: Mapping[str, Any]) -> str:
    lettered = zip("ABCDEFGHIJ", document["choices"], strict=False)
    return "\n".join([document["prompt"], *(f"{letter}. {choice}" for letter, choice in lettered)])
