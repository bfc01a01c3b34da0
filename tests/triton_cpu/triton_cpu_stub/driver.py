"""The backend's driver half: one device, always there."""

from typing import Any, NoReturn

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class StubDriver(DriverBase):
    """What Triton and vLLM ask of an active driver."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: object) -> NoReturn:
        raise NotImplementedError

    def get_current_target(self) -> Any:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> NoReturn:
        raise NotImplementedError

    def get_empty_cache_for_benchmark(self) -> NoReturn:
        raise NotImplementedError

    def clear_cache(self, cache: object) -> None:
        pass
