"""How much an answer repeats itself."""

from collections.abc import Sequence

_GRAM = 4
_LONGEST_PERIOD = 64
_ROUNDS = 3
_LEAST_TOKENS = 24


def repeated_share(token_ids: Sequence[int]) -> float:
    """Share of 4-grams that stood in the answer before; 0 for an answer of less than four tokens."""
    grams = [tuple(token_ids[i : i + _GRAM]) for i in range(len(token_ids) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def loops(token_ids: Sequence[int]) -> bool:
    """Whether the answer ends in a loop: at most 64 tokens, three times over and for at least 24 tokens."""
    for period in range(1, _LONGEST_PERIOD + 1):
        reach = max(_ROUNDS * period, _LEAST_TOKENS)
        tail = token_ids[-reach:]
        if len(tail) == reach and tail[period:] == tail[:-period]:
            return True
    return False
