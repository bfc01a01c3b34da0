"""Peak memory of a server's processes while a cell runs."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_INTERVAL_S = 1.0
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1024 * 1024)


class PeakMemory:
    """Samples once a second in a thread.

    Attributes:
        resident_mib: Largest sum of resident memory; pages that processes share count in each.
        gpu_mib: Largest sum of used memory over all devices (whoever uses it); None without nvidia-smi.
    """

    def __init__(self, process_ids: Callable[[], Sequence[int]]) -> None:
        """Watch the processes that `process_ids` names at each sample."""
        self.resident_mib = 0.0
        self.gpu_mib: float | None = None
        self._process_ids = process_ids
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, after a last sample."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            last = self._done.wait(_INTERVAL_S)
            self.resident_mib = max(self.resident_mib, sum(map(_resident_mib, self._process_ids())))
            used = gpu_used_mib()
            if used is not None:
                self.gpu_mib = max(self.gpu_mib or 0.0, used)
            if last:
                return


def gpu_used_mib() -> float | None:
    """Used memory of all NVIDIA devices together, or None."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    values = [float(line) for line in answer.stdout.split() if line.isdigit()]
    return sum(values) if answer.returncode == 0 and values else None


def _resident_mib(process_id: int) -> float:
    try:
        return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * _PAGE_MIB
    except OSError:
        return 0.0
