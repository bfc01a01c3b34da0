"""Fresh memory full of garbage: on a CPU it is mostly zeros, and what reads unwritten elements passes unseen.

Integers are far from every id, count and index; as an offset in elements they leave the address space instead
of wrapping round to the buffer itself, as a power of two near 2**63 would. Floats are NaN, flags are set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

GARBAGE = {8: 2**60, 4: 2**30, 2: 2**14, 1: 77}

_ALLOCATORS = (
    (torch, ("empty", "empty_like", "empty_strided")),
    (torch.Tensor, ("new_empty", "new_empty_strided")),
)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Let what torch and NumPy allocate uninitialised hold garbage, in whoever's code."""
    _compile_first()
    with pytest.MonkeyPatch.context() as patch:
        for owner, names in _ALLOCATORS:
            for name in names:
                patch.setattr(owner, name, _filled(getattr(owner, name), fill_tensor))
        patch.setattr(np, "empty", _filled(np.empty, fill_array))
        yield


def fill_tensor(tensor: Tensor) -> None:
    """Overwrite all of a tensor; a compiler's make-believe ones have nothing to overwrite."""
    if type(tensor) is not Tensor or tensor.requires_grad or tensor.is_meta:
        return
    if tensor.dtype.is_floating_point:
        tensor.fill_(torch.nan)
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    elif not tensor.dtype.is_complex:
        tensor.fill_(GARBAGE[tensor.dtype.itemsize])


def fill_array(array: np.ndarray) -> None:
    """Overwrite all of an array of numbers; others hold nothing that could be taken for a value."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    elif array.dtype.kind == "b":
        array.fill(True)
    elif array.dtype.kind in "iu":
        array.fill(GARBAGE[array.dtype.itemsize])


def _filled(allocate: Callable[..., Any], fill: Callable[[Any], None]) -> Callable[..., Any]:
    def allocate_and_fill(*args: Any, **kwargs: Any) -> Any:
        made = allocate(*args, **kwargs)
        fill(made)
        return made

    return allocate_and_fill


def _compile_first() -> None:
    """Let numba see NumPy as it is: it knows the real function only."""
    from vllm_asd.kernels import load

    load(torch.device("cpu"))
