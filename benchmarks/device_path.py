"""The path that a step takes on a GPU, taken on a CPU: Triton kernels are recorded instead of run.

Where the package asks for the device's type it is told of a GPU. What a kernel would write is zero, which no
decision of the host depends on: nothing in a step waits for the device. Needs Triton, not its interpreter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction, create_function_from_signature

from vllm_asd.kernels import dispatch
from vllm_asd.kernels.outcome import Outcome
from vllm_asd.slots import SlotTable
from vllm_asd.telemetry.step_report import StepReport

_OUTPUTS = ("table_ptr", "before_ptr", "nan_ptr", "perturbed_ptr")


class Launch(NamedTuple):
    """One launch of a Triton kernel.

    Attributes:
        kernel: Its name.
        specialization: All that Triton compiles anew for: per argument its type and what it knows of the
            value, for a constant the value; then the options, such as ``num_warps``.
    """

    kernel: str
    specialization: tuple[object, ...]


class _OnDevice(torch.Tensor):
    """A CPU tensor that says that it is on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


@contextmanager
def device_path(
    launched: Callable[[Launch], None], copied: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Take the device's path in this process.

    Args:
        launched: Told of each launch of a Triton kernel.
        copied: Told of each copy from the host that on a CPU is none.

    Raises:
        RuntimeError: Triton interprets (``TRITON_INTERPRET=1``): an interpreted kernel is never specialised.
    """
    kernels = dispatch._load_triton()
    if kernels == dispatch._REFERENCE or not isinstance(_decide_kernel(), JITFunction):
        raise RuntimeError("needs Triton without its interpreter: unset TRITON_INTERPRET")
    upload, start, empty = SlotTable.upload, StepReport.start, torch.empty

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        del grid, warmup
        with _disable_current_modes():
            arguments, types, options = _binder(self)(*args, **kwargs)
            for name in _OUTPUTS:
                if isinstance(arguments.get(name), Tensor):
                    arguments[name].zero_()
        launched(Launch(self.__name__, (*types, *sorted(options.items()))))

    def counted_upload(self: SlotTable, rows: Any, dtype: torch.dtype) -> Tensor:
        with _disable_current_modes():
            uploaded = upload(self, rows, dtype)
        copied()
        return uploaded

    def start_on_device(request_ids: Any, outcome: Outcome) -> StepReport:
        on_device = Outcome(outcome.table.as_subclass(_OnDevice), outcome.width)
        with mock.patch("torch.empty", _unpinned(empty)), mock.patch("torch.Event", mock.Mock()):
            return start(request_ids, on_device)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(dispatch, "_kernels", return_value=kernels))
        patches.enter_context(mock.patch.object(JITFunction, "run", record))
        patches.enter_context(mock.patch.object(SlotTable, "upload", counted_upload))
        patches.enter_context(mock.patch.object(StepReport, "start", start_on_device))
        yield


def _unpinned(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """There is no pinned memory without a GPU."""

    def allocate(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        del pin_memory
        return empty(*args, **kwargs)

    return allocate


def _decide_kernel() -> Any:
    from vllm_asd.kernels import triton_verify

    return triton_verify._decide_kernel


@functools.cache
def _binder(kernel: Any) -> Callable[..., tuple[dict[str, Any], list[Any], dict[str, Any]]]:
    """Triton's own function from a launch's arguments to what it specialises on."""
    binder: Callable[..., tuple[dict[str, Any], list[Any], dict[str, Any]]] = create_function_from_signature(
        kernel.signature, kernel.params, CUDABackend
    )
    return binder
