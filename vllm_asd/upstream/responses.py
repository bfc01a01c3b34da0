"""Front end, ``/v1/responses``: its field ``metrics.speculative_decoding``, which vLLM never fills."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from vllm_asd.upstream.patching import APPLIED, Patch

GENERATE = Patch(
    target="vllm.entrypoints.openai.responses.serving:OpenAIServingResponses._generate_with_builtin_tools",
    parameters=("self", "context"),
    why="the engine's last output carries the report, and most of vLLM's conversation contexts drop it",
    remove_when="vLLM puts speculative-decoding metrics into /v1/responses",
    process="front end",
    hot=True,
    exact=False,
)

FULL_GENERATOR = Patch(
    target="vllm.entrypoints.openai.responses.serving:OpenAIServingResponses.responses_full_generator",
    parameters=(
        "self",
        "request",
        "sampling_params",
        "result_generator",
        "context",
        "model_name",
        "tokenizer",
        "request_metadata",
        "created_time",
    ),
    why="every response of the route is built here, streamed or not, and without the report",
    remove_when="vLLM puts speculative-decoding metrics into /v1/responses",
    process="front end",
    hot=True,
)

# The module that every command which serves HTTP has imported by the time its configuration is made.
_API_SERVER = "vllm.entrypoints.launchers.api_server.entry"
_OUTPUT = "asd_output"


def install() -> None:
    """Apply the patches if this process is an API server; others would import the route for nothing."""
    if _API_SERVER in sys.modules:
        APPLIED.apply(GENERATE, _wrap_generate)
        APPLIED.apply(FULL_GENERATOR, _wrap_full_generator)


def _wrap_generate(original: Callable[..., Any]) -> Callable[..., Any]:
    def generate(self: Any, *args: Any, context: Any, **kwargs: Any) -> Any:
        append_output = context.append_output

        def append_and_keep(output: Any) -> None:
            setattr(context, _OUTPUT, output)
            append_output(output)

        context.append_output = append_and_keep
        return original(self, *args, context=context, **kwargs)

    return generate


def _wrap_full_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    async def full_generator(
        self: Any,
        request: Any,
        sampling_params: Any,
        result_generator: Any,
        context: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        response = await original(self, request, sampling_params, result_generator, context, *args, **kwargs)
        # As vLLM's timings: of an answer that called tools in between, the report would be a part.
        if context.request_metrics_cover_all_generation_turns:
            _fill(response, getattr(context, _OUTPUT, None))
        return response

    return full_generator


def _fill(response: Any, output: Any) -> None:
    from vllm.entrypoints.generate.base.protocol import PerRequestMetrics
    from vllm.entrypoints.generate.base.serving import build_spec_decoding_metrics

    speculation = build_spec_decoding_metrics(output)
    # An error response has no such field.
    if speculation is not None and hasattr(response, "metrics"):
        response.metrics = response.metrics or PerRequestMetrics()
        response.metrics.speculative_decoding = speculation
