"""Three gaps of Triton 3.9's interpreter that vLLM's kernels run into, mended in the test process alone."""

import os
from collections.abc import Callable
from typing import Any

_LIBDEVICE = ("log1p", "expm1", "tanh", "cosh", "sinh")


def mend() -> None:
    """Mend the interpreter; vLLM calls it in each of its processes. Does nothing twice."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    if type_comparisons():
        _give_libdevice_bodies()
        _choose_torch_for_top_k()


def _give_libdevice_bodies() -> None:
    """The interpreter's libdevice functions are empty and return None; NumPy has them."""
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def body(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def evaluate(x: Any) -> Any:
            with np.errstate(all="ignore"):
                return tl.tensor(TensorHandle(function(x.handle.data), x.handle.dtype), x.type)

        return evaluate

    for name in _LIBDEVICE:
        setattr(libdevice, name, body(getattr(np, name)))


def type_comparisons() -> bool:
    """Label comparisons as booleans; they keep the operands' label, and masks made of them are refused.

    Returns:
        False if that is done already.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    if getattr(InterpreterBuilder, "is_mended", False):
        return False
    InterpreterBuilder.is_mended = True
    original = InterpreterBuilder.binary_op

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        out = original(self, lhs, rhs, op)
        if out.data.dtype == np.bool_:
            out.dtype = tl.int1
        return out

    InterpreterBuilder.binary_op = binary_op
    return True


def _choose_torch_for_top_k() -> None:
    """Keep away from the top-k kernel, whose use of `tl.range` the interpreter lacks: PyTorch does it too."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False
