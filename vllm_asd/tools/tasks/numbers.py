"""Word problems: the number that an answer arrives at, in English, Spanish and Chinese notation."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from vllm_asd.tools.tasks.final_answer import extract_each

_NUMBER = re.compile(r"-?\d[\d.,]*")
_STATED = re.compile(
    r"(?:answer\s+is|answer|respuesta\s+(?:final\s+)?es|respuesta|答案是|答案为|答案|\\boxed)[^\d\n-]{0,20}(-?\d[\d.,]*)",
    re.IGNORECASE,
)
_GROUPED = re.compile(r"-?\d{1,3}(?:([.,])\d{3})(?:\1\d{3})*")


def extract(responses: Iterable[Sequence[str]], _documents: object) -> list[list[str | None]]:
    """lm-eval's filter: the number of each response."""
    return extract_each(responses, final_number)


def score(document: Mapping[str, Any], results: Sequence[str | None]) -> dict[str, float]:
    """1 if the number is the document's, as numbers and not as text."""
    found = results[0]
    return {"score": float(found is not None and found == final_number(document["gold"]))}


def final_number(text: str) -> str | None:
    """The number that is stated as the answer, else the last one; plain notation, or None."""
    stated = _STATED.findall(text)
    numbers = stated or _NUMBER.findall(text)
    return _plain(numbers[-1]) if numbers else None


def _plain(number: str) -> str | None:
    """`1,200.50` and `1.200,5` as `1200.5`.

    A single separator with three digits behind it groups thousands: `1.200` is Spanish for 1200, and in
    English a word problem whose answer has three decimals is rarer than that.
    """
    number = number.rstrip(".,")
    if _GROUPED.fullmatch(number):
        number = re.sub("[.,]", "", number)
    elif "," in number and "." in number:
        grouping = min(",.", key=number.rfind)
        number = number.replace(grouping, "").replace(",", ".")
    elif number.count(",") == 1:
        number = number.replace(",", ".")
    try:
        return format(Decimal(number).normalize(), "f")
    except InvalidOperation:
        return None
