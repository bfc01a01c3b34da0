"""An audit hook of Python's that refuses what programs under test have no business doing.

It stops accidents and plain attempts. Code that corrupts the interpreter's memory gets past it; the kernel's
limits, the filter and bubblewrap are what holds then.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

_REFUSED = (
    "ctypes.", "os.exec", "os.fork", "os.kill", "os.posix_spawn", "os.setxattr", "os.spawn", "os.startfile",
    "os.system", "pty.", "resource.", "signal.pthread_kill", "socket.", "sqlite3.", "subprocess.", "syslog.",
    "urllib.",
)  # fmt: skip
_WRITING = (
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
    "os.truncate", "os.unlink", "os.utime", "shutil.",
)  # fmt: skip
_READING = ("os.listdir", "os.scandir")
# Ways around this hook: raw processes, raw memory, interpreters without it.
_REFUSED_MODULES = (
    "_ctypes", "_interpreters", "_posixsubprocess", "_testcapi", "_testinternalcapi", "_xxsubinterpreters",
    "ctypes",
)  # fmt: skip
_ANY_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
_ZONES = "/usr/share/zoneinfo"


def install(folder: str, libraries: Sequence[str]) -> None:
    """Refuse from now on.

    Args:
        folder: What may be written to, and read.
        libraries: What may be read besides.
    """
    _refuse_fork_exec()
    writable = (os.path.realpath(folder),)
    readable = (*writable, *map(os.path.realpath, libraries), *_DEVICES, _ZONES)

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        if event == "import" and arguments[0] in _REFUSED_MODULES:
            raise ImportError(f"{arguments[0]} is not allowed here")
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            allowed = (*writable, "/dev/null") if flags & _ANY_WRITE else readable
            _require(event, arguments[0], allowed)
        elif event.startswith(_WRITING):
            if isinstance(arguments[0], int):
                raise PermissionError(f"{event} of an open file is not allowed here")
            for path in arguments:
                _require(event, path, writable)
        elif event in _READING:
            _require(event, "." if arguments[0] is None else arguments[0], readable)

    sys.addaudithook(refuse)


def is_within(path: str, folder: str) -> bool:
    """Whether a resolved path is a resolved folder or lies in it; `/tmp/ab` does not lie in `/tmp/a`."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _require(event: str, path: object, folders: Sequence[str]) -> None:
    """Refuse a path outside; numbers of open files and other arguments pass."""
    if not isinstance(path, str | bytes | os.PathLike):
        return
    real = os.path.realpath(os.fsdecode(path))
    if not any(is_within(real, folder) for folder in folders):
        raise PermissionError(f"{event} outside the working directory is not allowed here")


def _refuse_fork_exec() -> None:
    """Put a refusal in place of the function that starts processes without an audit event."""

    def fork_exec(*_: object) -> None:
        raise PermissionError("_posixsubprocess.fork_exec is not allowed here")

    vars(import_module("_posixsubprocess"))["fork_exec"] = fork_exec
