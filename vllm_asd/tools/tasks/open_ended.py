"""Tasks without a right answer: they are compared by wording, length and likelihood, and have no score."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def extract(responses: Iterable[Sequence[str]], _documents: object) -> list[list[None]]:
    """lm-eval's filter: there is nothing to read out of these answers."""
    return [[None for _ in texts] for texts in responses]


def score(_document: Mapping[str, Any], _results: Sequence[object]) -> dict[str, float]:
    """No metric at all, rather than one that means nothing."""
    return {}
