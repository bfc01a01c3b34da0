"""A folder per model, made once: under a lock, and visible only when complete."""

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/vllm-asd`, or `~/.cache/vllm-asd`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vllm-asd"


def make_once(cache_dir: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The folder `cache_dir/name`, built now if it isn't there.

    Args:
        cache_dir: The cache; created if need be.
        name: The folder's name; holds whatever distinguishes one build from another.
        build: Fills an empty folder. What it leaves behind when it raises is removed.

    Returns:
        The complete folder.
    """
    folder = cache_dir / name
    if folder.is_dir():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f".{name}.lock"):
        if folder.is_dir():
            return folder
        logger.info("preparing %s ...", name)
        start = time.monotonic()
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=cache_dir))
        try:
            build(temporary)
            temporary.chmod(0o755)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        logger.info("prepared %s in %.0f s", folder, time.monotonic() - start)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
