"""The device that the kernels run on, and the interpreter's mending where that is a CPU."""

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton_cpu_stub.interpreter import type_comparisons  # type: ignore[import-not-found]

    type_comparisons()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
