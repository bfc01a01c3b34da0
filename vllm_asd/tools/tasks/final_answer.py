"""What an answer in words comes to: everything behind the model's thinking."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_THINK_END = "</think>"
Extracted = TypeVar("Extracted")


def behind_thinking(text: str) -> str:
    """The answer without a `<think>` part; all of it where there is none."""
    return text.rpartition(_THINK_END)[2]


def extract_each(
    responses: Iterable[Sequence[str]], extract: Callable[[str], Extracted]
) -> list[list[Extracted]]:
    """Apply an extraction in lm-eval's shape: one list of responses per document."""
    return [[extract(behind_thinking(text)) for text in texts] for texts in responses]
