"""Tell a person that a slow start is going on."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

_PLAIN_INTERVAL_S = 10.0


class StartProgress:
    """A spinner with the last log line on a terminal; a plain line every ten seconds elsewhere."""

    def __init__(self, title: str) -> None:
        """Nothing is shown before the first `update`."""
        self._title = title
        self._console = Console(stderr=True)
        self._start = time.monotonic()
        self._next_plain_s = _PLAIN_INTERVAL_S
        self._status: Status | None = None

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._console.is_terminal:
            self._status = self._console.status(self._title)
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""
        if self._status is not None:
            self._status.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def update(self, last_log_line: str) -> None:
        """Show how long it has taken and what happened last."""
        text = f"{self._title}, {self.elapsed_s:.0f} s"
        if self._status is not None:
            room = max(self._console.width - len(text) - 8, 0)
            self._status.update(f"{text}  [dim]{escape(last_log_line[:room])}[/dim]")
        elif self.elapsed_s >= self._next_plain_s:
            self._next_plain_s += _PLAIN_INTERVAL_S
            print(text, file=sys.stderr, flush=True)
