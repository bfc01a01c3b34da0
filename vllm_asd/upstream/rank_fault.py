"""Worker: a rank whose step fails must not stay behind while the others go on.

vLLM reads one rank's answer to a step. A fault on another is logged there and goes nowhere: that rank has
skipped the step, its ledger is no longer the others', and they wait for it in their next collective until
``VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`` (5 minutes). A rank that ends is noticed at once, and the engine ends
with it.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.vllm_asd")


def end_if_silent() -> None:
    """For the ``except`` of a step, before it raises again: where nobody would hear of it, log it and end.

    A call in place of a context manager: made anew for each step, that costs microseconds.

    Raises:
        SystemExit: vLLM does not read this rank's answer.
    """
    if not answers():
        logger.critical("ASD: a step failed on this rank, which ends so that the engine does", exc_info=True)
        raise SystemExit(1) from None


def answers() -> bool:
    """Whether vLLM reads this rank's output: the first of the last pipeline stage, where alone a seam is."""
    from vllm.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return True
    groups = (parallel_state.get_tp_group(), parallel_state.get_pcp_group())
    return all(group.is_first_rank for group in groups)
