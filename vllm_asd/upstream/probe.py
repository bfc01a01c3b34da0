"""What the doctor asks the installed vLLM: its model runner, and whether each patch finds its target."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm_asd import upstream
from vllm_asd.config import AsdConfigError, split_speculative_config
from vllm_asd.diagnosis import Finding, State
from vllm_asd.upstream.compatibility import refuse_combinations
from vllm_asd.upstream.patching import Patch

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True)
class Runner:
    """The model runner that vLLM would choose.

    Attributes:
        name: "V1" or "V2".
        platform: vLLM's name of the device, such as "cpu" or "cuda".
        reason: Why, in plain words.
    """

    name: str
    platform: str
    reason: str


def build_config(model: str | None, speculative_config: dict[str, Any] | None) -> Any:
    """Build vLLM's own configuration, as `vllm serve` would.

    Args:
        model: Folder or name; None gives vLLM's defaults without any model.
        speculative_config: What stands behind ``--speculative-config``, ``asd_`` keys included.

    Returns:
        The ``VllmConfig``.

    Raises:
        AsdConfigError: The ``asd_`` keys are wrong.
        ValueError: vLLM refuses the rest (also OSError, RuntimeError: whatever it raises).
    """
    from vllm.config import VllmConfig

    if model is None:
        return VllmConfig()
    from vllm.engine.arg_utils import EngineArgs

    native, _ = split_speculative_config(speculative_config or {})
    return EngineArgs(model=model, speculative_config=native or None).create_engine_config()


def chosen_runner(vllm_config: Any) -> Runner:
    """Ask a ``VllmConfig`` which runner serves it, and say why."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    name = "V2" if vllm_config.use_v2_model_runner else "V1"
    unsupported = vllm_config._get_v2_model_runner_unsupported_features()
    if _VARIABLE in os.environ:
        reason = f"{_VARIABLE}={os.environ[_VARIABLE]} decides"
    elif not HAS_TRITON:
        reason = "V2 needs Triton, which has no working backend here"
    elif unsupported:
        reason = f"V2 does not support: {', '.join(unsupported)}"
    else:
        reason = "vLLM's default" if name == "V2" else "vLLM's choice for this configuration"
    return Runner(name, current_platform.device_type, reason)


def check_combination(vllm_config: Any) -> Finding:
    """Whether ASD goes with the rest of the configuration."""
    try:
        refuse_combinations(vllm_config)
    except AsdConfigError as error:
        message, _, fix = str(error).partition(": ")
        return Finding("combination", "problem", message, fix)
    return Finding("combination", "ok", "nothing in the configuration rules ASD out")


def check_seams(runner: Runner) -> Iterator[Finding]:
    """Check every patch record of the package against the installed vLLM, one finding per seam.

    A seam that the chosen runner or platform doesn't use is reported, and can't be a problem.
    """
    seen: set[Patch] = set()
    for name in sorted(module.name for module in pkgutil.iter_modules(upstream.__path__)):
        module = importlib.import_module(f"{upstream.__name__}.{name}")
        # A record that another seam only imports is checked once.
        patches = [p for p in vars(module).values() if isinstance(p, Patch) and p not in seen]
        seen.update(patches)
        if patches:
            yield _check_seam(name, patches, _is_used(name, runner))


def _is_used(seam: str, runner: Runner) -> bool:
    """The runners' seams begin with the runner's name, the repairs for one platform with the platform's."""
    prefix = seam.partition("_")[0]
    if prefix in ("v1", "v2"):
        return prefix == runner.name.lower()
    return runner.platform == "cpu" if prefix == "cpu" else True


def _check_seam(name: str, patches: list[Patch], used: bool) -> Finding:
    check = f"seam {name}"
    unused = "" if used else " (not used here)"
    for patch in patches:
        try:
            patch.check()
        # Importing the target's module may fail in whatever way that module can.
        except (RuntimeError, ImportError, AttributeError, TypeError, ValueError, OSError) as error:
            # The record's own message names its fix behind the last colon.
            message, _, fix = str(error).rpartition(": ")
            state: State = "problem" if used else "note"
            return Finding(check, state, f"{message or error}{unused}", fix if used else "")
    return Finding(check, "ok", f"{_counted(len(patches))} found{unused}")


def _counted(number: int) -> str:
    return "its target" if number == 1 else f"its {number} targets"
