"""A child process in a group of its own that dies as a whole, whatever happens to its parent."""

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.1


class ServerDied(RuntimeError):
    """The process ended, or was not ready in time; the message ends with the tail of its log."""


class ProcessGroup:
    """A command and everything it starts, with its output in a log file."""

    def __init__(self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> None:
        """Start the command. From here on, `stop` runs at the latest when this interpreter exits."""
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """Of the command itself; the group's id too."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The command's exit status; None while it runs."""
        return self._process.poll()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def stop(self, grace_s: float = 20.0) -> None:
        """End the group and wait until it is gone. May be called again.

        The command alone gets SIGINT first, so that it can stop its own children in order. What is left of
        the group when it has ended, or after half the grace, gets SIGTERM, and SIGKILL when the grace is
        over.
        """
        start = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGINT)
            self._process.wait(grace_s / 2)
        with contextlib.suppress(ProcessLookupError):
            if not self._gone_by(time.monotonic() + _POLL_S):
                os.killpg(self.pid, signal.SIGTERM)
            while not self._gone_by(max(start + grace_s, time.monotonic() + _POLL_S)):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        atexit.unregister(self.stop)

    def members(self) -> list[int]:
        """Process ids of the group's living members."""
        return group_members(self.pid)

    def _gone_by(self, deadline: float) -> bool:
        while self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S / 2)
        return True


def group_members(group: int) -> list[int]:
    """Process ids in a process group, zombies left out (where init doesn't reap, they stay for good)."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command name, in parentheses, may hold anything; the fields behind it don't.
            state, _parent, process_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(process_group) == group and state not in "ZX":
            members.append(int(entry.name))
    return members


def _die_with_parent() -> Callable[[], None] | None:
    """For the child: SIGTERM when the parent is gone, even by SIGKILL, where no handler of ours runs.

    The kernel ties this to the thread that started the child, so only a main thread's child may have it.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def set_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return set_signal
