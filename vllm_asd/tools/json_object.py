"""Read what a user gave: a text file, and a JSON object in an option or a file."""

import json
from pathlib import Path
from typing import Any

from vllm_asd.tools.usage import BadUsage

LIMITS_EXAMPLE = "give for example '{\"asd_budget\": 2}'"
SPECULATION_EXAMPLE = 'give for example \'{"method": "ngram", "num_speculative_tokens": 5}\''
_MOST_SHOWN = 60


class NotAnObject(BadUsage):
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
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or thousands of brackets.
        found, reason = None, f" ({shortened(str(error))})"
    if not isinstance(found, dict):
        raise NotAnObject(f"{name} is not a JSON object but {shortened(text)}{reason}: {fix}")
    return found


def read_text(name: object, path: Path) -> str:
    """A file's text.

    Raises:
        BadUsage: It can't be read, or is no text; one line that begins with `name`.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadUsage(f"{name}: can't read {path} ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadUsage(f"{name}: {path} is no UTF-8 text") from None


def shortened(text: str) -> str:
    """On one line, and not too long for a message."""
    line = " ".join(text.split()) or "empty"
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 3] + "..."
