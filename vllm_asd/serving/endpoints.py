"""The entry point ``asd`` in ``vllm.endpoint_plugins``: is it on, under which limits, what has it done."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fastapi import APIRouter, FastAPI, Request

import vllm_asd
from vllm_asd.config import AsdConfig
from vllm_asd.serving.authentication import ApiKeys, KeyedRoute
from vllm_asd.serving.counters import counters_by_engine
from vllm_asd.upstream.engine_args import asd_config_of
from vllm_asd.upstream.stat_logger import metrics_registry
from vllm_asd.versions import installed_vllm

router = APIRouter(prefix="/plugins/asd", tags=["vllm-asd"], route_class=KeyedRoute)


class AsdEndpoints:
    """Adds the routes; they read this process's state and never reach into the engine."""

    name = "asd"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Register the routes."""
        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Remember the server's keys and which settings the engine runs under; None without ASD."""
        state.asd_api_keys = ApiKeys.of_server(args)
        state.asd_config = None if engine_client is None else asd_config_of(engine_client.vllm_config)


@router.get("/status")
async def status(request: Request) -> dict[str, Any]:
    """Whether ASD decides, and in which mode."""
    config = _config(request)
    found = installed_vllm()
    return {
        "enabled": config is not None,
        "mode": _mode(config),
        "vllm_asd_version": vllm_asd.__version__,
        "vllm_version": None if found is None else found[1],
    }


@router.get("/limits")
async def limits(request: Request) -> dict[str, Any]:
    """The server's settings: what a request runs under that asks for nothing stricter."""
    config = _config(request)
    return {} if config is None else config.in_force()


@router.get("/counters")
async def counters() -> dict[str, Any]:
    """What ``/metrics`` says under the prefix ``vllm_asd:``, by engine."""
    return counters_by_engine(metrics_registry())


def _config(request: Request) -> AsdConfig | None:
    config: AsdConfig | None = getattr(request.app.state, "asd_config", None)
    return config


def _mode(config: AsdConfig | None) -> str:
    if config is None:
        return "off"
    if config.limits.is_strict:
        return "strict"
    return config.asd_mode
