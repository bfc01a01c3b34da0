"""The Triton kernels behind the dispatch for CUDA, in whole steps of the worker."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.pretend_cuda import CUDA, pretend_cuda
from tests.unit.test_device_branches import drive, read
from vllm_asd.config import AsdConfig
from vllm_asd.kernels import dispatch

# NumPy, which interprets, says so where a GPU computes without a word.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def launched(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Run a kernel of the pretended GPU: in the interpreter, which may look at its tensors."""

    def launch(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            result = kernel(*args)
            if isinstance(result, torch.Tensor):
                result.is_there = True  # type: ignore[attr-defined]
            return result

    return launch


@pytest.mark.parametrize("maxima", [False, True], ids=["V1", "V2"])
@pytest.mark.parametrize(
    "keys",
    [{"asd_refill": 0.25, "asd_guard": "on"}, {"asd_scope": "phases", "asd_pricing": "realized"}],
    ids=["guard", "phases"],
)
def test_steps_on_a_gpu_come_to_what_the_plain_kernels_say(
    keys: dict[str, object], maxima: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded by the dispatch for CUDA; a step, and one that was taken back, end in the same accounts."""
    config = AsdConfig.from_keys({"asd_gate": 4.0, "asd_budget": 6.0, **keys})
    loaded = dispatch._load_triton()
    assert not set(loaded) & set(dispatch._REFERENCE)
    triton = dispatch._Kernels(*(launched(kernel) for kernel in loaded))
    monkeypatch.setattr(dispatch, "_load_triton", lambda: triton)
    monkeypatch.setattr(dispatch, "_load_cpu", lambda: dispatch._REFERENCE)
    dispatch._kernels.cache_clear()
    try:
        with pretend_cuda():
            *there, verifier = drive(CUDA, config, maxima)
        *here, expected = drive(torch.device("cpu"), config, maxima)
    finally:
        dispatch._kernels.cache_clear()
    assert there == here
    assert read(verifier)[0] == read(expected)[0]
