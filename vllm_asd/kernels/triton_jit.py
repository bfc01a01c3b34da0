"""How our Triton kernels are compiled: once per set of types and constants, whatever the values are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton


def jit(kernel: Callable[..., None]) -> Any:
    """Compile like ``triton.jit``, but not anew for values of integers and alignments of pointers.

    Otherwise a batch of one row, a width divisible by 16 or a chunk of a step that begins elsewhere in memory
    would each compile again, in the middle of serving. Constants have upper-case names.
    """
    names = [name for name in inspect.signature(kernel).parameters if name.islower()]
    return triton.jit(kernel, do_not_specialize=names, do_not_specialize_on_alignment=names)
