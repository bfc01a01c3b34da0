"""What a step launches: how many operations come on top of vLLM's own, and that none is compiled late."""

import json
from pathlib import Path

import pytest

from tests.v2.environment import run_module, triton_environment

pytest.importorskip("triton")

# With the device's settings in force throughout; benchmarks/README.md says what counts.
STEADY = {
    "v1": {"default": 3, "detailed": 4, "scope": 7, "phases": 9, "guard": 7, "refill": 6, "gumbel": 8},
    "v2": {"default": 4, "detailed": 5, "scope": 8, "phases": 10, "guard": 8, "refill": 4, "gumbel": 10},
}
CHANGED = {
    "v1": {"default": 8, "detailed": 9, "scope": 16, "phases": 19, "guard": 16, "refill": 11, "gumbel": 14},
    "v2": {"default": 9, "detailed": 10, "scope": 17, "phases": 20, "guard": 17, "refill": 9, "gumbel": 16},
}


def recording_environment() -> dict[str, str]:
    """Where vLLM finds Triton usable, and kernels are what the compiler would get; nothing launches them."""
    environment = triton_environment(plugin=False)
    del environment["TRITON_INTERPRET"]
    return environment


def test_a_step_adds_no_more_operations_than_the_readme_says(tmp_path: Path) -> None:
    """A decision, a charge and a copy, and on V2 a look for NaN; the other settings cost what they do."""
    log = run_module(["benchmarks.launches"], recording_environment(), tmp_path / "launches.log")
    counts = json.loads(log.splitlines()[-1])
    assert {runner: counts[runner] for runner in STEADY} == STEADY
    assert {runner: counts[f"{runner}_batch_changed"] for runner in CHANGED} == CHANGED
    readme = (Path(__file__).resolve().parents[2] / "benchmarks" / "README.md").read_text()
    for name in STEADY["v1"]:
        cells = [table[runner][name] for table in (STEADY, CHANGED) for runner in ("v1", "v2")]
        assert f"| {name} | {' | '.join(map(str, cells))} |" in readme


def test_traffic_compiles_nothing(tmp_path: Path) -> None:
    """See `tests/v2/recorded`."""
    environment = recording_environment() | {"VLLM_ASD_TRITON_TESTS": "1"}
    arguments = ["pytest", "-q", "-p", "no:cacheprovider", "tests/v2/recorded"]
    assert "2 passed" in run_module(arguments, environment, tmp_path / "pytest.log")
