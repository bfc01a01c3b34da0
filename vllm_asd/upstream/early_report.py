"""Requests with stop strings: their reports travel with every step, each time only what is new.

vLLM sends a report when the engine core ends a request. A stop string is found in the front end, after the
engine core has sent the step's tokens, so that the response would have no report. Totals are sent whole,
lists in parts: how much of a list came before, the totals tell.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from vllm_asd.upstream.patching import APPLIED, Patch

PROCESS_OUTPUTS = Patch(
    target="vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
    parameters=(
        "self",
        "engine_core_outputs",
        "engine_core_timestamp",
        "iteration_stats",
        "weight_version",
    ),
    why="a report that comes in parts is put together here, before a stop string may end the request",
    remove_when="vLLM reports on requests that a stop string ended",
    process="front end",
    hot=True,
)

_STEP_LISTS = ("per_step_accepted", "per_step_drafted")
_TRACE = "exception_trace"
_PHASES = "phases"


def install() -> None:
    """Let this process's front end put parts together."""
    APPLIED.apply(PROCESS_OUTPUTS, _wrap_process_outputs)


def take_part(request: Any) -> Any:
    """Cut what is new since the last call from a request's report.

    The part shares nothing that changes: another thread encodes it while the engine goes on.

    Args:
        request: vLLM's ``Request``, with a ``RequestSpecDecodeMetrics``.
    """
    whole = request.spec_decode_metrics
    num_steps, num_exceptions = getattr(request, "asd_sent", (0, 0))
    part = copy.copy(whole)
    part.histogram = list(whole.histogram)
    for name in _STEP_LISTS:
        setattr(part, name, getattr(whole, name)[num_steps:])
    if whole.asd is not None:
        part.asd = {**whole.asd, "blocks_by_stop": dict(whole.asd["blocks_by_stop"])}
        if _PHASES in part.asd:
            part.asd[_PHASES] = {name: dict(phase) for name, phase in part.asd[_PHASES].items()}
        if _TRACE in part.asd:
            part.asd[_TRACE] = part.asd[_TRACE][num_exceptions:]
        num_exceptions = part.asd["exceptions"]
    request.asd_sent = (sum(part.histogram), num_exceptions)
    return part


def _wrap_process_outputs(original: Callable[..., Any]) -> Callable[..., Any]:
    def process_outputs(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        for output in engine_core_outputs:
            part = output.spec_decode_metrics
            state = None if part is None else self.request_states.get(output.request_id)
            if state is not None and state.spec_decode_metrics is not None:
                _complete(part, state.spec_decode_metrics)
        return original(self, engine_core_outputs, *args, **kwargs)

    return process_outputs


def _complete(part: Any, known: Any) -> None:
    """Put what is known of a report in front of its new part; a whole report stays as it is."""
    for name in _STEP_LISTS:
        joined = _join(getattr(known, name), getattr(part, name), sum(part.histogram))
        setattr(part, name, joined)
    if part.asd is not None and _TRACE in part.asd:
        part.asd[_TRACE] = _join(known.asd[_TRACE], part.asd[_TRACE], part.asd["exceptions"])


def _join(known: list[Any], new: list[Any], total: int) -> list[Any]:
    """Append to the known list itself: a copy in every step would make long answers quadratic again."""
    missing = total - len(new)
    if missing <= 0:
        return new
    del known[missing:]
    known.extend(new)
    return known
