"""Runs `program.py` of its working directory under limits; started as a script, imports nothing of ours."""

import os
import resource
import sys

_CPU_S = 5
_MEMORY_BYTES = 1024**3
_FILE_BYTES = 1024**2
_REFUSED = (
    "ctypes.", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.posix_spawn", "os.spawn", "os.startfile",
    "os.system", "pty.", "signal.pthread_kill", "socket.", "subprocess.", "urllib.",
)  # fmt: skip
_WRITING = (
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
    "os.truncate", "os.unlink", "os.utime", "shutil.",
)  # fmt: skip


def _limit() -> None:
    for what, most in (
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _guard(folder: str) -> None:
    def is_outside(path: object) -> bool:
        if isinstance(path, int):
            return False
        return not os.path.realpath(os.fsdecode(path)).startswith(folder)  # type: ignore[arg-type]

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        if event.startswith(_WRITING) and any(
            is_outside(path) for path in arguments if isinstance(path, str | bytes)
        ):
            raise PermissionError(f"{event} outside the working directory is not allowed here")
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) and is_outside(arguments[0]):
                raise PermissionError("writing outside the working directory is not allowed here")

    sys.addaudithook(refuse)


def _main() -> None:
    word = sys.argv.pop()
    with open("program.py", encoding="utf-8") as file:
        source = file.read()
    write, flush = os.write, sys.stdout.flush
    _limit()
    _guard(os.path.realpath(os.getcwd()))
    try:
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
    except BaseException:  # noqa: BLE001 - a SystemExit of the program's is a failure, too
        os._exit(1)
    flush()
    write(1, word.encode())
    os._exit(0)


if __name__ == "__main__":
    _main()
