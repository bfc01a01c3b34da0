"""What the user gave can't be used: the one exception that a command answers with "bad usage"."""


class BadUsage(ValueError):
    """An option, a file or a folder is wrong; the message is one line that names it and the fix."""
