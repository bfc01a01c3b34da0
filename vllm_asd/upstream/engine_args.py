"""Front end, start-up: ``asd_*`` keys come in through ``--speculative-config`` and reach every process.

vLLM pickles its configuration to the engine core and the workers. ASD's part rides in
``VllmConfig.additional_config``, vLLM's own place for settings that are not its own, and
``SpeculativeConfig`` stays what vLLM expects: its method is "standard" wherever vLLM looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_asd.config import AsdConfig, AsdConfigError, split_speculative_config
from vllm_asd.upstream.patching import APPLIED, Patch, PatchError
from vllm_asd.upstream.start_up import end_in_one_line

CONFIG_KEY = "vllm_asd"

CREATE_SPECULATIVE_CONFIG = Patch(
    target="vllm.engine.arg_utils:EngineArgs.create_speculative_config",
    parameters=("self", "target_model_config", "target_parallel_config"),
    why="SpeculativeConfig forbids extra keys, so the asd_ keys are taken out before it is built",
    remove_when="vLLM has a registry of rejection sample methods with their own settings",
    process="front end",
)

CREATE_ENGINE_CONFIG = Patch(
    target="vllm.engine.arg_utils:EngineArgs.create_engine_config",
    parameters=("self", "usage_context", "headless"),
    why="what cannot be combined with ASD is known only when the whole configuration is built",
    remove_when="vLLM lets a plugin validate the finished VllmConfig",
    process="front end",
)


def asd_config_of(vllm_config: Any) -> AsdConfig | None:
    """Read ASD's settings out of a ``VllmConfig``; None when ASD was not asked for."""
    additional = getattr(vllm_config, "additional_config", None)
    keys = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
    return None if keys is None else AsdConfig.from_keys(keys)


def install(on_requested: Callable[[Any, AsdConfig], None]) -> None:
    """Apply the two start-up patches; neither does anything but a look-up while ASD is not asked for.

    Args:
        on_requested: Called with the finished ``VllmConfig`` when ASD was asked for; may refuse.
    """
    APPLIED.apply(CREATE_SPECULATIVE_CONFIG, _wrap_create_speculative_config)
    APPLIED.apply(CREATE_ENGINE_CONFIG, lambda original: _wrap_create_engine_config(original, on_requested))


def _wrap_create_speculative_config(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = self.speculative_config
        if not isinstance(given, dict):
            return original(self, *args, **kwargs)
        native, config = split_speculative_config(given)
        if config is None:
            return original(self, *args, **kwargs)
        if not isinstance(self.additional_config, dict):
            kind = type(self.additional_config).__name__
            raise AsdConfigError(
                f"ASD needs --additional-config to be a dictionary, not {kind}: its settings travel there"
            )
        self.additional_config = {**self.additional_config, CONFIG_KEY: config.in_force()}
        self.speculative_config = native
        try:
            return original(self, *args, **kwargs)
        finally:
            # Another engine may be built from the same arguments (several API servers, tests).
            self.speculative_config = given

    return create_speculative_config


def _refuse_taken_key(additional: object) -> None:
    if isinstance(additional, dict) and CONFIG_KEY in additional:
        raise AsdConfigError(
            f"--additional-config holds {CONFIG_KEY!r}, which belongs to vllm-asd: "
            "set the asd_ keys in --speculative-config instead"
        )


def _wrap_create_engine_config(
    original: Callable[..., Any], on_requested: Callable[[Any, AsdConfig], None]
) -> Callable[..., Any]:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = self.additional_config
        try:
            _refuse_taken_key(given)
            vllm_config = original(self, *args, **kwargs)
            config = asd_config_of(vllm_config)
            if config is not None:
                on_requested(vllm_config, config)
        except (AsdConfigError, PatchError):
            end_in_one_line()
            raise
        finally:
            # Or the next engine built from these arguments would have ASD on without asking for it.
            self.additional_config = given
        return vllm_config

    return create_engine_config
