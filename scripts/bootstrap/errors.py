"""The one exception that `scripts/setup.py` turns into a message."""


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do, for a reader who has not seen the code."""
