"""`VllmServer`: a `vllm serve` for as long as a `with` block lasts."""

import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self

from vllm_asd.tools.server.environment import server_environment
from vllm_asd.tools.server.keyed_request import keyed_request
from vllm_asd.tools.server.metrics import Metrics
from vllm_asd.tools.server.process import ProcessGroup, ServerDied
from vllm_asd.tools.server.progress import StartProgress

# `-m` and not the script `vllm`: the same interpreter, whatever is on PATH.
VLLM_SERVE = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
_HOST = "127.0.0.1"
_POLL_S = 0.25


class VllmServer:
    """A server on a free loopback port. Enter to start it; leaving stops it, whatever the reason."""

    def __init__(
        self,
        model: str | Path,
        args: Sequence[str] = (),
        *,
        port: int | None = None,
        kv_cache_gib: int = 1,
        omp_threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        start_timeout_s: float = 600.0,
        command: Sequence[str] = VLLM_SERVE,
    ) -> None:
        """Describe the server; nothing starts yet.

        Args:
            model: Model folder or name, the first argument of `vllm serve`.
            args: Further arguments of `vllm serve`.
            port: The port; None takes a free one.
            kv_cache_gib: Memory for the KV cache on a CPU.
            omp_threads: Threads of the CPU kernels; None leaves it to vLLM.
            environment: Variables on top of this process's own.
            log_path: Where its output goes; None makes a file in the system's temporary folder.
            start_timeout_s: How long the start may take.
            command: What stands in for `vllm serve` (tests).
        """
        self.port = port if port is not None else _free_port()
        self.base_url = f"http://{_HOST}:{self.port}"
        self.log_path = log_path or Path(tempfile.mkdtemp(prefix="vllm-asd-"), "server.log")
        self._command = [*command, str(model), "--host", _HOST, "--port", str(self.port), *args]
        self._environment = server_environment(
            {**os.environ, **(environment or {})}, kv_cache_gib=kv_cache_gib, omp_threads=omp_threads
        )
        self._title = f"starting vLLM with {Path(model).name}"
        self._start_timeout_s = start_timeout_s
        self._group: ProcessGroup | None = None
        self._old_sigterm: signal.Handlers | None = None
        self.start_s = 0.0

    def __enter__(self) -> Self:
        """Start and wait until the server answers.

        Raises:
            ServerDied: If it ends before that, or takes too long.
            OSError: If something else listens on the port: its answers would pass for this server's.
        """
        _check_free(self.port)
        self._exit_on_sigterm()
        try:
            self._group = ProcessGroup(self._command, self.log_path, self._environment)
            self._wait_until_healthy(self._group)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    def stop(self) -> None:
        """Stop the server and everything it started. May be called again."""
        if self._group is not None:
            self._group.stop()
        if self._old_sigterm is not None:
            signal.signal(signal.SIGTERM, self._old_sigterm)
            self._old_sigterm = None

    def wait(self) -> int:
        """Wait until the server ends by itself; its exit status."""
        while (status := self._running.returncode) is None:
            time.sleep(_POLL_S)
        return status

    def process_ids(self) -> list[int]:
        """The server's processes, engine core included."""
        return self._running.members()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return self._running.log_tail(lines)

    def get(self, path: str, timeout_s: float = 10.0) -> str:
        """The body of a GET request to the server."""
        with urllib.request.urlopen(keyed_request(self.base_url + path), timeout=timeout_s) as response:
            return str(response.read().decode())

    def metrics(self) -> Metrics:
        """What /metrics says now."""
        return Metrics.parse(self.get("/metrics"))

    @property
    def _running(self) -> ProcessGroup:
        if self._group is None:
            raise RuntimeError("the server was not started; use it in a `with` block")
        return self._group

    def _wait_until_healthy(self, group: ProcessGroup) -> None:
        with StartProgress(self._title) as progress:
            while not self._healthy():
                if group.returncode is not None:
                    raise ServerDied(
                        f"vllm serve ended with status {group.returncode}. {self._log_excerpt(group)}"
                    )
                if progress.elapsed_s > self._start_timeout_s:
                    raise ServerDied(
                        f"no answer after {self._start_timeout_s:.0f} s. {self._log_excerpt(group)}"
                    )
                progress.update(group.log_tail(1))
                time.sleep(_POLL_S)
            self.start_s = progress.elapsed_s

    def _healthy(self) -> bool:
        try:
            self.get("/health", timeout_s=2.0)
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _log_excerpt(self, group: ProcessGroup) -> str:
        return f"The end of its log ({self.log_path}):\n{group.log_tail()}"

    def _exit_on_sigterm(self) -> None:
        """Turn SIGTERM into SystemExit, so that `with` blocks and atexit run; others' handlers stay."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _raise_exit)
            self._old_sigterm = signal.SIG_DFL


def _raise_exit(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 (signal's signature)
    raise SystemExit(128 + signum)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex((_HOST, port)) == 0:
            raise OSError(f"port {port} is in use; choose another")
