"""The Triton kernels: against the reference in the interpreter, and through the compiler for real GPUs."""

import os
from pathlib import Path

import pytest
import torch

from tests.v2.environment import run_module, triton_environment

pytest.importorskip("triton")


@pytest.mark.slow
def test_the_kernels_equal_the_reference(tmp_path: Path) -> None:
    """Natively on a GPU, else interpreted; see `tests/v2/interpreted`."""
    environment = dict(os.environ) if torch.cuda.is_available() else triton_environment()
    environment["VLLM_ASD_TRITON_TESTS"] = "1"
    arguments = ["pytest", "-q", "-p", "no:cacheprovider", "tests/v2/interpreted"]
    report = run_module(arguments, environment, tmp_path / "pytest.log")
    assert " passed" in report


@pytest.mark.slow
def test_the_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    """The interpreter takes what the compiler refuses; the compiler needs no GPU."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    report = run_module(["tests.v2.compile_kernels"], environment, tmp_path / "compile.log")
    assert "compiled 30 kernels" in report
