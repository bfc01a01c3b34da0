"""Front end, per request: a wrong ``asd_*`` value becomes an HTTP 400 before anything is scheduled.

Three doors, because vLLM's entry points differ in when they can still answer 400: ``SamplingParams`` (all
HTTP routes build one before a stream starts), ``AsyncLLM.generate`` (this engine's own limits, eagerly) and
the per-request validator of ``InputProcessor`` (offline, and whatever came past the other two). A beam
search passes none of them with its keys, since vLLM makes new parameters for each of its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_asd.config import KEY_PREFIX, AsdConfig, AsdConfigError, most_permissive
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

_BEAM_SEARCH_WHY = "vllm_xargs are dropped here without a word, and a beam search never speculates"
_BEAM_SEARCH_GONE = "vLLM refuses vllm_xargs with use_beam_search"

COMPLETION_BEAM_SEARCH = Patch(
    target="vllm.entrypoints.openai.completion.protocol:CompletionRequest.to_beam_search_params",
    parameters=("self", "max_tokens", "default_sampling_params"),
    why=_BEAM_SEARCH_WHY,
    remove_when=_BEAM_SEARCH_GONE,
    process="front end",
    hot=True,
)

CHAT_BEAM_SEARCH = Patch(
    target="vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest.to_beam_search_params",
    parameters=("self", "max_tokens", "default_sampling_params"),
    why=_BEAM_SEARCH_WHY,
    remove_when=_BEAM_SEARCH_GONE,
    process="front end",
    hot=True,
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
    APPLIED.apply(COMPLETION_BEAM_SEARCH, _wrap_beam_search)
    APPLIED.apply(CHAT_BEAM_SEARCH, _wrap_beam_search)


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


def _wrap_beam_search(original: Callable[..., Any]) -> Callable[..., Any]:
    def to_beam_search_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        if keys := sorted(key for key in self.vllm_xargs or {} if key.startswith(KEY_PREFIX)):
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(
                f"{keys[0]} does nothing in a beam search, which never speculates: "
                "drop use_beam_search or the asd_ keys"
            )
        return original(self, *args, **kwargs)

    return to_beam_search_params


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
