"""The Triton kernels: against the reference in the interpreter, and through the compiler for real GPUs."""

import json
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
@pytest.mark.skipif("VLLM_ASD_OTHER_VLLM" not in os.environ, reason="names no source of another vLLM")
def test_the_seam_fits_the_other_versions_kernels(tmp_path: Path) -> None:
    """The other version's V2 kernels, run from its source with the installed version's packages."""
    if torch.cuda.is_available():
        pytest.skip("its compiled parts are not there")
    environment = triton_environment() | {"VLLM_ASD_TRITON_TESTS": "1"}
    path = [environment["PYTHONPATH"], os.environ["VLLM_ASD_OTHER_VLLM"]]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    arguments = ["pytest", "-q", "-p", "no:cacheprovider", "tests/v2/interpreted/test_vllm_kernels.py"]
    assert "21 passed" in run_module(arguments, environment, tmp_path / "pytest.log")


@pytest.mark.slow
def test_the_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    """The interpreter takes what the compiler refuses; the compiler needs no GPU."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    report = run_module(["tests.v2.compile_kernels"], environment, tmp_path / "compile.log")
    assert "compiled 129 kernels" in report


@pytest.mark.slow
def test_the_benchmark_runs_and_does_not_call_interpreting_a_measurement(tmp_path: Path) -> None:
    """Its last line is JSON; where the kernels are interpreted it says that nothing was measured."""
    if torch.cuda.is_available():
        pytest.skip("would measure here, for minutes")
    arguments = ["benchmarks.verify_triton", "--rows", "2", "--vocab", "900", "--rounds", "1"]
    log = run_module([*arguments, "--native", "stand-in"], triton_environment(), tmp_path / "bench.log")
    result = json.loads(log.splitlines()[-1])
    assert result["measured"] is False
    assert [case["rows"] for case in result["cases"]] == [2]
    assert result["cases"][0]["exceptions_per_block"] > 0
