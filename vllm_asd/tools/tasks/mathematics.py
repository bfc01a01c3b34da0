r"""Competition mathematics: what stands in the last \boxed{}, compared as lm-eval does."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lm_eval.tasks.hendrycks_math.utils import is_equiv, last_boxed_only_string, remove_boxed

from vllm_asd.tools.tasks.final_answer import extract_each


def extract(responses: Iterable[Sequence[str]], _documents: object) -> list[list[str | None]]:
    """lm-eval's filter: the boxed part of each response."""
    return extract_each(responses, boxed)


def score(document: Mapping[str, Any], results: Sequence[str | None]) -> dict[str, float]:
    """1 if it is the document's answer up to notation."""
    found = results[0]
    return {"score": float(found is not None and bool(is_equiv(found, document["gold"])))}


def boxed(text: str) -> str | None:
    r"""What stands in the last complete \boxed{}, or None."""
    last = last_boxed_only_string(text)
    if last is None:
        return None
    try:
        return str(remove_boxed(last))
    except (AssertionError, IndexError):  # how that function says that the braces are odd
        return None
