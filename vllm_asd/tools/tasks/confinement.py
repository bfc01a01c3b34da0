"""The ways to confine a process of the sandbox on this machine, strongest first."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Kind = Literal["bubblewrap", "fallback"]
# `nobody`: who programs run as when the audit is root's.
_NOBODY = 65534
_TASKS = Path(__file__).parent
_SANDBOX = "sandbox"
_INSIDE = "/launcher"
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache")
_ZONES = "/usr/share/zoneinfo"
_MOST_WRITTEN_BYTES = 64 * 1024**2
_START = "import sys; sys.path.append(sys.argv[1]); from sandbox.start import main; main()"


@dataclass(frozen=True)
class Confinement:
    """One way.

    Attributes:
        kind: As the report calls it.
        before: The command's words before Python's.
        launcher_folder: Where the process finds the package `sandbox`.
        has_filter: Whether the kernel refuses system calls by number; without, it limits processes by user.
        user: Who it runs as; None leaves that as it is.
    """

    kind: Kind
    before: tuple[str, ...]
    launcher_folder: str
    has_filter: bool
    user: int | None = None

    def start(
        self, role: Literal["judge", "candidate"], folder: str, stdin: int, stdout: int
    ) -> "subprocess.Popen[bytes]":
        """Start a process in a session of its own, in an empty folder; bubblewrap has its own folder."""
        if self.user is not None:
            os.chown(folder, self.user, self.user)
        python = [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", _START]
        options = ["filter"] if self.has_filter else []
        return subprocess.Popen(
            [*self.before, *python, self.launcher_folder, role, *options],
            cwd=folder,
            env={
                "PYTHONHASHSEED": "0",
                "PATH": os.defpath,
                "TMPDIR": "/tmp" if self.kind == "bubblewrap" else folder,
            },
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )


def candidates() -> Iterator[Confinement]:
    """Every way that might work here, strongest first; whether it does shows when it is tried."""
    before = _bubblewrap()
    if before:
        for has_filter in (True, False):
            yield Confinement("bubblewrap", before, _INSIDE, has_filter)
    is_root = os.geteuid() == 0
    for has_filter in (True, False):
        if is_root:
            yield Confinement("fallback", (), str(_TASKS), has_filter, _NOBODY)
        # Without a filter nothing keeps root from starting processes.
        if has_filter or not is_root:
            yield Confinement("fallback", (), str(_TASKS), has_filter)


@cache
def _bubblewrap() -> tuple[str, ...]:
    """The words before a command that run it under bubblewrap; none where that is not installed."""
    path = shutil.which("bwrap")
    if path is None:
        return ()
    known = subprocess.run([path, "--help"], capture_output=True, text=True, check=False).stdout
    size = ("--size", str(_MOST_WRITTEN_BYTES)) if "--size " in known else ()
    return (
        path,
        *(
            "--unshare-all",
            "--unshare-user",
            "--uid",
            str(_NOBODY),
            "--gid",
            str(_NOBODY),
            "--cap-drop",
            "ALL",
        ),
        *("--die-with-parent", "--new-session"),
        *(word for shown in _shown() for word in ("--ro-bind-try", shown, shown)),
        *("--ro-bind", str(_TASKS / _SANDBOX), f"{_INSIDE}/{_SANDBOX}"),
        # No /proc: nothing of the process itself or of others to read there.
        *("--dev", "/dev", "--remount-ro", "/dev"),
        *(*size, "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"),
    )


def _shown() -> tuple[str, ...]:
    """What of this machine's files a Python without packages needs."""
    prefix = os.path.realpath(sys.base_prefix)
    python = (os.path.realpath(sys.executable), f"{prefix}/lib", f"{prefix}/lib64")
    return tuple(dict.fromkeys((*_LIBRARIES, *python, _ZONES)))
