"""Worker, every step, both runners: the life of a ledger entry follows from ``SchedulerOutput`` alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from vllm_asd.config import AsdConfig, AsdConfigError, RequestLimits
from vllm_asd.upstream.commit import notice_of
from vllm_asd.upstream.rank_fault import end_if_silent
from vllm_asd.verification import Verifier

logger = logging.getLogger("vllm.vllm_asd")

_GREEDY_BELOW = 1e-5  # vLLM's own border, vllm/sampling_params.py: _SAMPLING_EPS

_STRICT = RequestLimits(budget=0.0, gate=0.0, block_cap=0)


def follow_schedule(verifier: Verifier, scheduler_output: Any) -> None:
    """Take back what was not kept, close the entries of finished requests, then open those of new ones.

    In this order, because an id can be in both when it is reused at once. A resumed request, which the V2
    runner gets as a new one, finds its entry and keeps it; so does the next chunk of a streaming session.
    """
    try:
        notice = notice_of(scheduler_output)
        if notice is not None:
            for request_id, rollback in notice.rollbacks.items():
                verifier.roll_back(request_id, rollback.after_step, rollback.kept_tokens)
            verifier.start_step(notice.step, notice.committed_through)
        if scheduler_output.finished_req_ids:
            verifier.release(scheduler_output.finished_req_ids)
        if scheduler_output.scheduled_new_reqs:
            _admit(verifier, scheduler_output.scheduled_new_reqs)
    except Exception:
        end_if_silent()
        raise


def _admit(verifier: Verifier, requests: Iterable[Any]) -> None:
    for new in requests:
        params = new.sampling_params
        if params is None:
            continue
        limits = limits_of(verifier.config, params)
        verifier.admit(
            new.req_id,
            _STRICT if limits is None else limits,
            stop_ids(params),
            new.prompt_token_ids,
            sampled=not is_greedy(params),
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


def limits_of(config: AsdConfig, params: Any) -> RequestLimits | None:
    """The limits a request with these ``SamplingParams`` runs under; None when it stays vLLM's altogether.

    Those are the sampled ones, unless both the server and the request let ASD couple them.
    """
    sampled = not is_greedy(params)
    if sampled and config.asd_sampling == "off":
        return None
    try:
        settings = config.settings_for(params.extra_args)
    except AsdConfigError as error:
        # The front end refuses such a request; one that comes past it must not take the engine down.
        logger.warning("ASD: a request with wrong limits reached the engine and is served strict: %s", error)
        return _STRICT
    return None if sampled and settings.asd_sampling == "off" else settings.limits
