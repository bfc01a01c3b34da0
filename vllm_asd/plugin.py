"""The entry point ``asd`` in ``vllm.general_plugins``: vLLM calls :func:`register` once in every process.

While nobody asks for ASD, four start-up functions of vLLM are wrapped by a look at the configuration, and
nothing else is touched. When ``--speculative-config`` asks for it, the front end checks the combination and
the requests, each worker's model runner gets its seam, and the scheduler gets the reports.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from vllm_asd.config import AsdConfig

logger = logging.getLogger("vllm.vllm_asd")


def register() -> None:
    """Prepare this process; may be called more than once.

    The front end is where the arguments are parsed. An engine core or worker process has loaded vLLM's worker
    module by the time it calls this, so the check costs no import that vLLM would not make.
    """
    from vllm_asd.upstream import engine_args, start_up

    start_up.keep_silent()
    engine_args.install(on_requested)
    if "vllm.v1.worker.worker_base" in sys.modules:
        _install_engine_side()


def on_requested(vllm_config: Any, config: AsdConfig) -> None:
    """Switch ASD on in the front end; called with the finished configuration.

    Raises:
        AsdConfigError: The installed vLLM or another setting does not go with ASD, or ``asd_scope`` needs
            think tokens that vLLM does not know.
        PatchError: A hook's target is not what was expected.
    """
    from vllm_asd.upstream import (
        compatibility,
        early_report,
        requests,
        responses,
        start_up,
        stat_logger,
        think_markers,
        wire,
    )

    compatibility.refuse_unsupported_version()
    compatibility.refuse_combinations(vllm_config)
    if config.asd_scope != "all":
        # The workers read them too, but only once the model is loaded.
        think_markers.think_markers(vllm_config, config.asd_scope)
    requests.install(config)
    wire.install()
    stat_logger.install()
    early_report.install()
    responses.install()
    start_up.speak()
    # The engine may run in this very process (VLLM_ENABLE_V1_MULTIPROCESSING=0).
    _install_engine_side()
    logger.info("ASD on: %s", " ".join(f"{key}={value}" for key, value in config.in_force().items()))


def _install_engine_side() -> None:
    from vllm_asd.upstream import scheduler, worker

    worker.install()
    scheduler.install()
