"""Runs a program that a model wrote against tests, such that the program has no say in whether it passed.

Two processes: one loads the program, the other runs the tests and asks the first for values, which come as
plain data (`vllm_asd/tools/tasks/sandbox`). Passed means that the tests' process ended with status 0, as its
parent, this process, sees it. There is no secret to find out: the program's process never sees the tests, and
whatever it prints, returns, patches or writes to the channel is an answer at most.

Both run under bubblewrap where that is installed and works: no network, no files but Python's own and an
empty /tmp, no processes of others in sight. Else under the fallback: a system call filter, an audit hook of
Python's, and user `nobody` if the audit is root's and `nobody` can run this Python. Always: 5 s of CPU, 1 GiB
of memory, files of 1 MiB, no further processes or threads, an end after the wall time.

What remains possible. A program can answer right for the values that it is asked about without computing
them, if it knows the benchmark by heart. Under the fallback, one that corrupts the memory of its interpreter
gets past the audit hook: then it reads and writes what its user may, which may be you; run as root, it could
reach the tests' process as well. Under bubblewrap it would need a hole in the kernel.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from functools import cache

from vllm_asd.tools.tasks.confinement import Confinement, Kind, candidates

WALL_TIME_S = 10.0


class NotConfined(ValueError):
    """Nothing on this machine confines what a model wrote; the message is one line."""


@dataclass(frozen=True)
class Trial:
    """A program and what it has to pass.

    Attributes:
        program: What the model wrote, with what it continues.
        tests: Run on the program's global names; everything they compare is plain data.
        helpers: Code of the task's, not the model's, that the tests may use.
        entry_point: The one name that is the program's even if the helpers define it.
    """

    program: str
    tests: str = ""
    helpers: str = ""
    entry_point: str = ""


def passes(trial: Trial, wall_time_s: float = WALL_TIME_S, confinement: Confinement | None = None) -> bool:
    """Whether the program loads and the tests run to their end, without an exception and within the limits.

    Args:
        trial: The program and its tests.
        wall_time_s: The longest that may take.
        confinement: None takes the strongest that works here.

    Raises:
        NotConfined: None works.
    """
    chosen = confinement or confinement_here()
    with _folder() as of_candidate, _folder() as of_judge:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            candidate = chosen.start("candidate", of_candidate, theirs.fileno(), subprocess.DEVNULL)
            try:
                judge = chosen.start("judge", of_judge, subprocess.PIPE, ours.fileno())
            except BaseException:
                _end(candidate)
                raise
        try:
            judge.communicate(json.dumps(asdict(trial)).encode(), wall_time_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(candidate)
            _end(judge)
        return judge.returncode == 0


def confinement_here() -> Confinement:
    """The strongest confinement that works on this machine.

    Raises:
        NotConfined: None does.
    """
    found = confinement_of("bubblewrap") or confinement_of("fallback")
    if found is None:
        raise NotConfined("nothing here can confine what the model writes: install bubblewrap (bwrap)")
    return found


@cache
def confinement_of(kind: Kind) -> Confinement | None:
    """The strongest confinement of a kind that works here, which is tried; None if none does."""
    probe = Trial("import math\ndef double(x):\n    return [2 * x, math.pi]", "assert double(3)[0] == 6")
    for confinement in candidates():
        with contextlib.suppress(OSError):  # the user can't be changed, or may not run this Python
            if confinement.kind == kind and passes(probe, confinement=confinement):
                return confinement
    return None


def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="vllm-asd-code-", ignore_cleanup_errors=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and what may share its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
