"""Requests with stop strings: their reports travel with every step, each time only what is new.

vLLM sends a report when the engine core ends a request. A stop string is found in the front end, after the
engine core has sent the step's tokens, so that the response would have no report. Totals are sent whole,
lists in parts: how much of a list came before, the totals tell. With them goes what it takes to cut the
step's block: the client gets its tokens up to the stop string alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_asd.telemetry.last_block import LastBlock
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.telemetry.request_report import TRACE
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

TRIM_SURPLUS_TOKENS = Patch(
    target="vllm.v1.engine.output_processor:OutputProcessor._trim_surplus_tokens",
    parameters=("req_state", "output", "num_prev_tokens"),
    why="called when a stop string was found: the report must end where the answer does",
    remove_when="vLLM reports on requests that a stop string ended",
    process="front end",
    hot=True,
)

_STEP_LISTS = ("per_step_accepted", "per_step_drafted")
# In a part's `asd` on its way; afterwards beside it, since clients read `asd`.
_LAST_BLOCK = "last_block"
_LAST_BLOCK_OF_PART = "asd_last_block"
# On a part that a client has: the lists are the client's, too.
_IS_HANDED_OVER = "asd_is_handed_over"
# On a report that was cut: the one that the next part of a session goes on from.
_UNCUT = "asd_uncut"


def install() -> None:
    """Let this process's front end put parts together."""
    APPLIED.apply(PROCESS_OUTPUTS, _wrap_process_outputs)
    APPLIED.apply(TRIM_SURPLUS_TOKENS, _wrap_trim_surplus_tokens)


def copy_metrics(metrics: Any, first_step: int = 0) -> Any:
    """Copy a ``RequestSpecDecodeMetrics``, which the engine goes on to change while the copy is encoded.

    Args:
        metrics: vLLM's record.
        first_step: How many steps to leave out of its lists, from the first on.
    """
    part = copy.copy(metrics)
    part.histogram = list(metrics.histogram)
    for name in _STEP_LISTS:
        setattr(part, name, getattr(metrics, name)[first_step:])
    return part


@dataclass
class _Followed:
    """A request with stop strings, and what was sent of its lists."""

    metrics: Any
    num_steps: int = 0
    num_exceptions: int = 0


class EarlyReports:
    """Engine core: sends the reports of requests with stop strings with every step."""

    def __init__(self, reports: OpenReports) -> None:
        """Follow nobody.

        Args:
            reports: Where the ``asd`` objects come from.
        """
        self._reports = reports
        self._followed: dict[str, _Followed] = {}
        self._ended: list[str] = []

    def follow(self, request: Any) -> None:
        """Begin with a request of vLLM's that has a ``RequestSpecDecodeMetrics``.

        The stop strings of a session are those of its first chunk, in vLLM's front end too.
        """
        self._followed[request.request_id] = _Followed(request.spec_decode_metrics)

    def end(self, request_id: str) -> None:
        """Note that a request has ended; its last part goes with the step."""
        if request_id in self._followed:
            self._ended.append(request_id)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request's report is sent here."""
        return request_id in self._followed

    def __len__(self) -> int:
        """Count the requests that are followed."""
        return len(self._followed)

    def cuttable(self, kept: Mapping[str, Sequence[int]]) -> set[str]:
        """Followed requests of whose tokens of this step the client may get some only."""
        return {request_id for request_id in self._followed if len(kept.get(request_id, ())) > 1}

    def send(self, items: Sequence[Any]) -> None:
        """Put what is new on the outputs of a step; those who got no output have no news."""
        if self._followed:
            for item in items:
                followed = self._followed.get(item.request_id)
                # An error ends a request without a report.
                if followed is not None and (item.finish_reason is None or item.spec_decode_metrics):
                    item.spec_decode_metrics = self._take_part(item.request_id, followed)
        for request_id in self._ended:
            self._followed.pop(request_id, None)
        self._ended = []

    def _take_part(self, request_id: str, followed: _Followed) -> Any:
        """Cut what is new since the last call from a request's report; shares nothing that changes."""
        part = copy_metrics(followed.metrics, followed.num_steps)
        part.asd = self._reports.report(request_id, followed.num_exceptions)
        followed.num_steps = sum(part.histogram)
        if part.asd is not None:
            followed.num_exceptions = part.asd["exceptions"]
            last_block = self._reports.last_block(request_id)
            if last_block is not None:
                part.asd[_LAST_BLOCK] = last_block.pack()
        return part


def _wrap_process_outputs(original: Callable[..., Any]) -> Callable[..., Any]:
    def process_outputs(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        for output in engine_core_outputs:
            part = output.spec_decode_metrics
            if part is None:
                continue
            if part.asd is not None:
                setattr(part, _LAST_BLOCK_OF_PART, part.asd.pop(_LAST_BLOCK, None))
            setattr(part, _IS_HANDED_OVER, output.finish_reason is not None)
            state = self.request_states.get(output.request_id)
            known = None if state is None else state.spec_decode_metrics
            if known is not None:
                _complete(part, getattr(known, _UNCUT, known))
        return original(self, engine_core_outputs, *args, **kwargs)

    return process_outputs


def _wrap_trim_surplus_tokens(original: Callable[..., Any]) -> Callable[..., Any]:
    def trim_surplus_tokens(req_state: Any, output: Any, num_prev_tokens: int) -> None:
        original(req_state, output, num_prev_tokens)
        whole = output.spec_decode_metrics
        packed = getattr(whole, _LAST_BLOCK_OF_PART, None)
        if packed is not None:
            num_kept = req_state.detokenizer.num_output_tokens() - num_prev_tokens
            setattr(whole, _IS_HANDED_OVER, True)
            cut = copy.copy(whole)
            setattr(cut, _UNCUT, whole)
            cut.asd = LastBlock.unpack(packed).cut(whole.asd, num_kept)
            req_state.spec_decode_metrics = cut

    return trim_surplus_tokens


def _complete(part: Any, known: Any) -> None:
    """Put what is known of a report in front of its new part; a whole report stays as it is."""
    is_handed_over = getattr(known, _IS_HANDED_OVER, False)

    def join(old: list[Any], new: list[Any], total: int) -> list[Any]:
        missing = total - len(new)
        if missing <= 0:
            return new
        if is_handed_over:
            return [*old[:missing], *new]
        # The known list itself: a copy in every step would make long answers quadratic again.
        del old[missing:]
        old.extend(new)
        return old

    for name in _STEP_LISTS:
        setattr(part, name, join(getattr(known, name), getattr(part, name), sum(part.histogram)))
    if part.asd is not None and TRACE in part.asd:
        part.asd[TRACE] = join(known.asd[TRACE], part.asd[TRACE], part.asd["exceptions"])
