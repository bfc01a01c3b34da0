"""Worker, start-up: once the model runner exists, give it the seam that fits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_asd.config import AsdConfig
from vllm_asd.upstream.engine_args import asd_config_of
from vllm_asd.upstream.patching import APPLIED, Patch

INIT_DEVICE = Patch(
    target="vllm.v1.worker.worker_base:WorkerWrapperBase.init_device",
    parameters=("self",),
    why="the model runner is made here, in every worker process, for every executor",
    remove_when="vLLM lets a plugin choose the rejection sampler",
    process="worker",
)

COMPILE_OR_WARM_UP = Patch(
    target="vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model",
    parameters=("self",),
    why="the last call before the server takes requests; at its end vLLM arms the monitor that reports or "
    "refuses whatever is compiled later",
    remove_when="vLLM lets a plugin warm up its kernels",
    process="worker",
    instance=True,
)


def install() -> None:
    """Apply the patch; it looks at the configuration once and does nothing while ASD is not asked for."""
    APPLIED.apply(INIT_DEVICE, _wrap_init_device)


def _wrap_init_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_device(self: Any) -> Any:
        result = original(self)
        config = asd_config_of(self.vllm_config)
        if config is not None:
            attach(self.worker.model_runner, self.vllm_config, config)
            COMPILE_OR_WARM_UP.bind(self.worker, lambda warm_up: _wrap_warm_up(self.worker, warm_up))
        return result

    return init_device


def _wrap_warm_up(worker: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_or_warm_up_model() -> Any:
        import torch

        seam = getattr(worker.model_runner, "asd_seam", None)
        if seam is not None:
            # As in service. Elastic scaling warms up again: by then tables may have grown there, and torch
            # refuses to write to those anywhere else.
            with torch.inference_mode():
                seam.warm_up()
        return original()

    return compile_or_warm_up_model


def attach(runner: Any, vllm_config: Any, config: AsdConfig) -> None:
    """Give a model runner its seam; ranks that do not sample (early pipeline stages) need none."""
    from vllm_asd.upstream import v1_runner, v2_runner

    if v2_runner.is_v2(runner):
        v2_runner.attach(runner, vllm_config, config)
    elif hasattr(runner, "rejection_sampler"):
        v1_runner.attach(runner, vllm_config, config)
