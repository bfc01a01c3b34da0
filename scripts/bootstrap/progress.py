"""Show which step runs, for how long, and what it is doing; keep the full output in a log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bootstrap.errors import SetupError

_PLAIN_INTERVAL_S = 15.0
_TAIL_LINES = 15
_PLAIN_COLUMNS = 100


class Progress:
    """Prints one line per step, live on a terminal and every 15 seconds elsewhere."""

    def __init__(self, total: int, log: Path) -> None:
        """Start counting `total` steps; what commands print goes to `log`."""
        self._total = total
        self._log = log
        self._number = 0
        self._title = ""
        self._start = time.monotonic()
        self._shown = self._start
        self._live = sys.stdout.isatty()

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._number += 1
        self._title = title
        self._start = self._shown = time.monotonic()
        self._write("", end="" if self._live else "\n")

    def done(self, note: str = "") -> None:
        """End the step, with what came of it where that isn't obvious."""
        self._write(note or "done", end="\n")

    def run(self, command: Sequence[str], hint: str = "") -> None:
        """Run a command to its end, showing its last line as it goes.

        Raises:
            SetupError: If it fails; the message carries the tail of its output and the hint.
        """
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        tail: list[str] = []
        with self._log.open("a", encoding="utf-8") as log:
            log.write("$ " + " ".join(command) + "\n")
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
            )
            try:
                for line in process.stdout or ():
                    log.write(line)
                    tail = [*tail[1 - _TAIL_LINES :], line.rstrip()]
                    self._tick(line.strip())
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if process.wait() != 0:
            self.done("failed")
            output = "\n  ".join(tail)
            raise SetupError(f"{self._title}: failed. The end of its output:\n  {output}\n{hint}".rstrip())

    def _tick(self, line: str) -> None:
        now = time.monotonic()
        if self._live:
            self._write(line, end="")
        elif now - self._shown > _PLAIN_INTERVAL_S:
            self._shown = now
            self._write(line[:_PLAIN_COLUMNS], end="\n")

    def _write(self, note: str, end: str) -> None:
        elapsed = time.monotonic() - self._start
        text = f"[{self._number}/{self._total}] {self._title}"
        text += f"  {elapsed:.0f} s" if elapsed >= 1 else ""
        text += f"  {note}" if note else ""
        if self._live:
            columns = os.get_terminal_size(sys.stdout.fileno()).columns or 80
            text = "\r\x1b[K" + text[: columns - 1]
        print(text, end=end, flush=True)
