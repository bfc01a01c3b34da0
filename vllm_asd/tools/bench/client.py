"""The load generator: `vllm bench serve` in a process that is started once."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from vllm_asd.tools.bench.settings import BenchError

_COMMAND = (sys.executable, "-m", "vllm_asd.tools.bench.client_process")


class BenchClient:
    """Use in a `with` block; it loads while the first server starts."""

    def __init__(
        self, log_path: Path, environment: Mapping[str, str], command: Sequence[str] = _COMMAND
    ) -> None:
        """Describe the client; nothing starts yet.

        Args:
            log_path: What vLLM prints.
            environment: On top of this process's own.
            command: What stands in for it (tests).
        """
        self._log_path = log_path
        self._environment = {**os.environ, **environment}
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self._loaded = False

    def __enter__(self) -> Self:
        """Start it."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = self._log_path.open("a", encoding="utf-8")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._environment,
            # Ctrl-C is for us: this process is ended in order, when its server is.
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, in the middle of a measurement too."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._log is not None:
            self._log.close()

    def run(self, arguments: Sequence[str]) -> None:
        """Run `vllm bench serve` with these arguments and wait for it.

        Raises:
            BenchError: It failed, or the process is gone.
        """
        if not self._loaded:
            self._read()
            self._loaded = True
        process = self._running
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(list(arguments)) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(self._gone()) from None
        error = self._read().get("error")
        if error:
            raise BenchError(f"`vllm bench serve` failed: {error} (log: {self._log_path})")

    @property
    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise RuntimeError("the client was not started; use it in a `with` block")
        return self._process

    def _read(self) -> dict[str, str]:
        process = self._running
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError(self._gone())
        return dict(json.loads(line))

    def _gone(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return "`vllm bench serve` ended by itself; the end of its log:\n" + "\n".join(lines)
