"""Approximate Speculative Decoding for vLLM: bounded, visible, audited relaxation of greedy verification."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_asd.config import AsdConfig, AsdConfigError

__all__ = ["AsdConfig", "AsdConfigError", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that importing the package costs a vLLM start nothing."""
    if name in ("AsdConfig", "AsdConfigError"):
        from vllm_asd import config

        return getattr(config, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
