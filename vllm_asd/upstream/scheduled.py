"""Worker, every step, both runners: the life of a ledger entry follows from ``SchedulerOutput`` alone."""

from __future__ import annotations

import logging
from typing import Any

from vllm_asd.config import AsdConfig, AsdConfigError, RequestLimits
from vllm_asd.verification import Verifier

logger = logging.getLogger("vllm.vllm_asd")

_GREEDY_BELOW = 1e-5  # vLLM's own border, vllm/sampling_params.py: _SAMPLING_EPS

_STRICT = RequestLimits(budget=0.0, gate=0.0, block_cap=0)


def follow_schedule(verifier: Verifier, scheduler_output: Any) -> None:
    """Close the entries of finished requests, then open those of new ones.

    In this order, because an id can be in both when it is reused at once. A resumed request, which the V2
    runner gets as a new one, finds its entry and keeps it; so does the next chunk of a streaming session.
    """
    if scheduler_output.finished_req_ids:
        verifier.release(scheduler_output.finished_req_ids)
    for new in scheduler_output.scheduled_new_reqs:
        params = new.sampling_params
        if params is None:
            continue
        verifier.admit(
            new.req_id,
            limits_of(verifier.config, params) if is_greedy(params) else _STRICT,
            stop_ids(params),
            new.prompt_token_ids,
        )


def stop_ids(params: Any) -> set[int]:
    """The token ids that end this request: its EOS, unless ignored, and its stop tokens."""
    ids = set(params.stop_token_ids or ())
    if params.eos_token_id is not None:
        ids.add(params.eos_token_id)
    return ids


def is_greedy(params: Any) -> bool:
    """Whether vLLM decodes a request with these ``SamplingParams`` greedily."""
    return bool(params.temperature < _GREEDY_BELOW)


def limits_of(config: AsdConfig, params: Any) -> RequestLimits:
    """The limits a request with these ``SamplingParams`` runs under."""
    try:
        return config.limits_for(params.extra_args)
    except AsdConfigError as error:
        # The front end refuses such a request; one that comes past it must not take the engine down.
        logger.warning("ASD: a request with wrong limits reached the engine and is served strict: %s", error)
        return _STRICT
