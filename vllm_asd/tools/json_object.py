"""Read a JSON object that a user gave, as an option or in a file."""

import json
from typing import Any

LIMITS_EXAMPLE = "give for example '{\"asd_budget\": 2}'"
SPECULATION_EXAMPLE = 'give for example \'{"method": "ngram", "num_speculative_tokens": 5}\''
_MOST_SHOWN = 60


class NotAnObject(ValueError):
    """A text that is no JSON object; the message is one line that names it and the fix."""


def read_object(name: object, text: str, fix: str) -> dict[str, Any]:
    """Parse it.

    Args:
        name: The option or file, as the user knows it.
        text: What was given.
        fix: What to do if it is wrong.

    Raises:
        NotAnObject: No JSON, or JSON of another kind. The message shows the text: a shell may have taken its
            quotes.
    """
    try:
        found = json.loads(text)
        reason = ""
    except json.JSONDecodeError as error:
        found, reason = None, f" ({error.msg} at character {error.pos + 1})"
    if not isinstance(found, dict):
        raise NotAnObject(f"{name} is not a JSON object but {shortened(text)}{reason}: {fix}")
    return found


def shortened(text: str) -> str:
    """On one line, and not too long for a message."""
    line = " ".join(text.split()) or "empty"
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 3] + "..."
