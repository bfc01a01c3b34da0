"""Engine core and front end: one more field on two records that vLLM sends anyway.

``RequestSpecDecodeMetrics`` travels with a finished request, ``SchedulerStats`` with each step.

vLLM's processes exchange msgpack-encoded dataclasses with a fixed set of fields. Adding a field with a
default is compatible in both directions: who does not know it skips it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from vllm_asd.upstream.patching import APPLIED, Patch

FIELD = "asd"

TO_DICT = Patch(
    target="vllm.v1.metrics.stats:RequestSpecDecodeMetrics.to_dict",
    parameters=("self",),
    why="the response's metrics.speculative_decoding is built from it",
    remove_when="per-request metrics can be extended by plugins",
    process="engine core, front end",
)


def install() -> None:
    """Give the two records their field; must come before vLLM builds its message decoders."""
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics, SchedulerStats

    _add_field(RequestSpecDecodeMetrics)
    _add_field(SchedulerStats)
    APPLIED.apply(TO_DICT, _wrap_to_dict)


def wants_detail(vllm_config: Any) -> bool:
    """Whether the responses list every exception (``--per-request-spec-decode-metrics detailed``)."""
    return bool(vllm_config.observability_config.per_request_spec_decode_metrics == "detailed")


def _add_field(record: type) -> None:
    """Append ``asd: dict | None = None`` to a dataclass that exists already."""
    if FIELD in record.__dataclass_fields__:  # type: ignore[attr-defined]
        return
    annotation = dict[str, Any] | None
    extended = dataclasses.make_dataclass(
        record.__name__, [(FIELD, annotation, dataclasses.field(default=None))]
    )
    record.__dataclass_fields__[FIELD] = extended.__dataclass_fields__[FIELD]  # type: ignore[attr-defined]
    record.__annotations__[FIELD] = annotation
    setattr(record, FIELD, None)


def _wrap_to_dict(original: Callable[..., Any]) -> Callable[..., Any]:
    def to_dict(self: Any) -> dict[str, Any]:
        payload: dict[str, Any] = original(self)
        if self.asd is not None:
            payload[FIELD] = self.asd
        return payload

    return to_dict
