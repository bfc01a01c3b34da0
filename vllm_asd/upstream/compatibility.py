"""What ASD cannot be combined with is refused at start, in one line, never silently strict."""

from __future__ import annotations

from typing import Any

from vllm_asd import versions
from vllm_asd.config import AsdConfigError


def refuse_unsupported_version() -> None:
    """Check the installed vLLM.

    Raises:
        AsdConfigError: There is none, or its version is outside the supported range.
    """
    found = versions.installed_vllm()
    if found is None:
        raise AsdConfigError(
            f"ASD needs vLLM ({versions.vllm_releases()}) and finds none: pip install 'vllm-asd[gpu]'"
        )
    if not versions.is_supported(found[1]):
        raise AsdConfigError(
            f"ASD supports vLLM {versions.vllm_releases()}, installed is {found[0]} {found[1]}: "
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
