"""Front end, per request: a wrong ``asd_*`` value becomes an HTTP 400 before anything is scheduled.

Three doors, because vLLM's entry points differ in when they can still answer 400: ``SamplingParams`` (all
HTTP routes build one before a stream starts), ``AsyncLLM.generate`` (this engine's own limits, eagerly) and
the per-request validator of ``InputProcessor`` (offline, and whatever came past the other two).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_asd.config import AsdConfig, AsdConfigError, most_permissive
from vllm_asd.upstream.engine_args import asd_config_of
from vllm_asd.upstream.patching import APPLIED, Patch

VERIFY_EXTRA_ARGS = Patch(
    target="vllm.sampling_params:SamplingParams._verify_extra_args",
    parameters=("self",),
    why="a streamed response is 200 once it has begun; this is the last check before that",
    remove_when="vLLM validates vllm_xargs through plugins before it starts a stream",
    process="front end",
    hot=True,
)

GENERATE = Patch(
    target="vllm.v1.engine.async_llm:AsyncLLM.generate",
    parameters=(
        "self",
        "prompt",
        "sampling_params",
        "request_id",
        "prompt_text",
        "lora_request",
        "tokenization_kwargs",
        "trace_headers",
        "priority",
        "data_parallel_rank",
        "session_id",
        "kv_hints",
        "reasoning_ended",
        "reasoning_parser_kwargs",
    ),
    why="an async generator checks nothing before its first item, which is after the stream has begun",
    remove_when="vLLM validates vllm_xargs through plugins before it starts a stream",
    process="front end",
    hot=True,
)

REQUEST_VALIDATOR = Patch(
    target="vllm.v1.engine.input_processor:InputProcessor._build_logits_processors_params_validator",
    parameters=("self",),
    why="vLLM's hook for per-request checks belongs to custom logits processors, which V1 forbids beside "
    "speculative decoding",
    remove_when="vLLM has a per-request validation hook for plugins",
    process="front end",
)

# The settings of the engines built in this process. A request that no engine here would take is refused when
# its parameters are made; which engine gets it is not known yet.
_served: list[AsdConfig] = []


def install(config: AsdConfig) -> None:
    """Check requests in this process against ``config`` from now on."""
    if config not in _served:
        _served.append(config)
    APPLIED.apply(VERIFY_EXTRA_ARGS, _wrap_verify_extra_args)
    APPLIED.apply(GENERATE, _wrap_generate)
    APPLIED.apply(REQUEST_VALIDATOR, _wrap_validator)


def _check(config: AsdConfig, extra_args: dict[str, Any] | None) -> None:
    from vllm.exceptions import VLLMValidationError

    try:
        config.limits_for(extra_args)
    except AsdConfigError as error:
        raise VLLMValidationError(str(error)) from None


def _wrap_verify_extra_args(original: Callable[..., Any]) -> Callable[..., Any]:
    def verify_extra_args(self: Any) -> None:
        original(self)
        _check(most_permissive(_served), self.extra_args)

    return verify_extra_args


def _wrap_generate(original: Callable[..., Any]) -> Callable[..., Any]:
    def generate(self: Any, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        config = asd_config_of(self.vllm_config)
        if config is not None:
            _check(config, getattr(sampling_params, "extra_args", None))
        return original(self, prompt, sampling_params, *args, **kwargs)

    return generate


def _wrap_validator(original: Callable[..., Any]) -> Callable[..., Any]:
    def build_validator(self: Any) -> Callable[[Any], None]:
        native: Callable[[Any], None] = original(self)
        config = asd_config_of(self.vllm_config)
        if config is None:
            return native

        def validate(params: Any) -> None:
            native(params)
            _check(config, params.extra_args)

        return validate

    return build_validator
