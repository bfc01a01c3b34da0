"""The environment variables that `vllm serve` needs on this machine."""

import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

_OPENMP_LIBRARIES = ("libiomp", "libomp", "libgomp")
_SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


def server_environment(base: Mapping[str, str], kv_cache_gib: int, omp_threads: int | None) -> dict[str, str]:
    """What a server process gets.

    Args:
        base: The caller's own environment; what it sets already, stands.
        kv_cache_gib: Memory for the KV cache. Read on CPUs alone.
        omp_threads: Threads of the CPU kernels; None leaves the choice to vLLM.

    Returns:
        The complete environment.
    """
    defaults = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
    if is_cpu_build():
        defaults["VLLM_CPU_KVCACHE_SPACE"] = str(kv_cache_gib)
        if omp_threads is not None:
            defaults["OMP_NUM_THREADS"] = str(omp_threads)
            defaults["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    environment = {**defaults, **base}
    if is_cpu_build():
        libraries = preload_libraries(base.get("LD_PRELOAD", ""), Path(sys.prefix))
        if libraries:
            environment["LD_PRELOAD"] = ":".join(libraries)
    return environment


def enter_environment(module: str, kv_cache_gib: int, in_process: Mapping[str, str]) -> None:
    """Start `python -m module` anew with what an engine in this process needs, unless it is there.

    Some of it is read before Python runs.

    Args:
        module: What this process runs.
        kv_cache_gib: Memory for the KV cache. Read on CPUs alone.
        in_process: Variables that must have these values; with them all, nothing is started.
    """
    if all(os.environ.get(key) == value for key, value in in_process.items()):
        return
    environment = {**server_environment(os.environ, kv_cache_gib, os.cpu_count()), **in_process}
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment)


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the CPU build."""
    try:
        return bool(metadata.version("vllm-cpu"))
    except metadata.PackageNotFoundError:
        return False


def dtype_args() -> list[str]:
    """Arguments of `vllm serve` for a model of ours: float32 on CPUs.

    There bf16 is wrong with some CPUs' kernels and six times as slow with others' (docs/install.md), and it
    rounds differently from one to the next.
    """
    return ["--dtype", "float32"] if is_cpu_build() else []


def preload_libraries(current: str, prefix: Path) -> list[str]:
    """The libraries to preload, in order: Intel's OpenMP and, where the system has it, tcmalloc.

    vLLM's CPU worker warns of "significant performance loss" without them. It refuses two OpenMP libraries,
    so one that the caller preloads stays alone.

    Args:
        current: `LD_PRELOAD` as it is; its entries stay in front, and nothing is added twice.
        prefix: The virtual environment.
    """
    libraries = [entry for entry in current.replace(" ", ":").split(":") if entry]
    openmp = (prefix / "lib").glob("libiomp5.so"), prefix.glob("lib/python*/site-packages/**/libiomp5.so")
    tcmalloc = (
        path
        for folder in _SYSTEM_LIBRARIES
        for pattern in ("libtcmalloc_minimal.so.*", "*/libtcmalloc_minimal.so.*")
        for path in sorted(Path(folder).glob(pattern))
    )
    _add_first(libraries, _OPENMP_LIBRARIES, (path for paths in openmp for path in paths))
    _add_first(libraries, ("libtcmalloc",), tcmalloc)
    return libraries


def _add_first(libraries: list[str], stems: Iterable[str], found: Iterable[Path]) -> None:
    if any(stem in os.path.basename(library) for library in libraries for stem in stems):
        return
    path = next(iter(found), None)
    if path is not None:
        libraries.append(str(path))
