"""Runs a program that a model wrote: in a process of its own, with little time, memory and reach.

What holds: CPU time, memory, file size, wall time; an empty temporary folder as working directory; no
site-packages and no environment; no network where the kernel lets an unprivileged process give it up. An
audit hook refuses to start programs, to open sockets, and to write or delete outside that folder: that stops
accidents, not an attacker. The program can read what you can read. For models you don't trust, audit in a
container.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

WALL_TIME_S = 10.0
_LAUNCHER = Path(__file__).parent / "launcher.py"
_MOST_OUTPUT_BYTES = 64 * 1024


def passes(program: str, wall_time_s: float = WALL_TIME_S) -> bool:
    """Whether a program runs to its end without an exception and within the limits."""
    # Only a program that came to its end is followed by this word; it can't guess it.
    word = secrets.token_hex(16)
    command = [*_without_network(), sys.executable, "-I", "-S", str(_LAUNCHER), word]
    with tempfile.TemporaryDirectory(prefix="vllm-asd-code-") as folder, tempfile.TemporaryFile() as output:
        source = Path(folder) / "program.py"
        source.write_text(program, encoding="utf-8", errors="replace")
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={"PYTHONHASHSEED": "0", "PATH": os.defpath, "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(wall_time_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - _MOST_OUTPUT_BYTES))
        return process.returncode == 0 and output.read().endswith(word.encode())


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and what it started, which shares its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@cache
def _without_network() -> tuple[str, ...]:
    """The words before a command that take its network away; none where that is not permitted."""
    command = ("unshare", "--user", "--net")
    if shutil.which(command[0]) is None:
        return ()
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else ()


def is_network_cut_off() -> bool:
    """Whether programs run without a network on this machine."""
    return bool(_without_network())
