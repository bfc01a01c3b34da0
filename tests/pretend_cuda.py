"""A GPU that is not there: CPU tensors that say they are on one, so that the branches for it run anywhere.

Stricter than the real one where that is silent: what makes the host wait is an error, and so is a copy that
is not from or to pinned memory. What travels to the host is garbage until its event has been waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tests.poison import fill_tensor

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")

_WAITS = {
    *("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"),
    *("is_nonzero", "equal", "unique", "masked_select", "repeat_interleave", "argwhere"),
}
_PROPERTIES = {"__get__", "__set__", "dim", "size", "stride", "numel", "storage_offset", "is_floating_point"}


class PretendCuda(TorchFunctionMode):
    """While it is entered, whatever is made with ``device="cuda"`` or of such tensors counts as on the GPU.

    Attributes:
        uploads: Copies to it so far.
        may_wait: Set it where the host may wait, as it may before the server takes requests.
    """

    def __init__(self) -> None:
        """Nothing is on the GPU yet."""
        super().__init__()
        self.uploads = 0
        self.may_wait = False
        self._downloads: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do the call on the CPU, and say where the result is."""
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func == torch.Tensor.device.__get__:
            return CUDA if _is_there(args[0]) else CPU
        if name in _PROPERTIES:
            return func(*args, **given)
        if name == "to":
            return self._move(args[0], args[1:], given)
        if name == "copy_" and _is_there(args[0]) != _is_there(args[1]):
            return self._copy(args[0], args[1], given.get("non_blocking", False))
        tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        there = any(map(_is_there, tensors))
        if there:
            self._check(name, args, tensors)
        made_there = given.get("device") is not None and torch.device(given["device"]).type == "cuda"
        waits = made_there and name in ("tensor", "as_tensor")
        assert self.may_wait or not waits, f"{name} makes the host wait"
        pinned = given.pop("pin_memory", False)
        if made_there:
            given["device"] = CPU
        result = func(*args, **given)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                _mark(leaf, there=there or made_there, pinned=pinned)
        return result

    def arrive(self) -> None:
        """What was on its way to the host is there."""
        for host, source in self._downloads:
            host.copy_(source)
        self._downloads.clear()

    def _check(self, name: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        assert name not in _WAITS or self.may_wait, f"{name} makes the host wait"
        elsewhere = [t for t in tensors if not _is_there(t) and t.dim()]
        assert not elsewhere, f"{name} of tensors on two devices"
        if name in ("__getitem__", "__setitem__"):
            indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)]
            flags = any(index.dtype == torch.bool for index in indices)
            assert not flags, "the host waits for the size of what flags select"

    def _move(self, tensor: Tensor, where: Sequence[Any], given: dict[str, Any]) -> Tensor:
        places = [w for w in (*where, given.get("device")) if isinstance(w, torch.device | str)]
        if not places or (torch.device(places[0]).type == "cuda") == _is_there(tensor):
            kept = [w for w in where if not isinstance(w, torch.device | str)]
            given.pop("device", None)
            moved = tensor.to(*kept, **given) if kept or given.keys() - {"non_blocking"} else tensor
            return _mark(moved, there=_is_there(tensor))
        assert torch.device(places[0]).type == "cuda", "a copy to the host that nobody can wait for"
        self._check_upload(tensor, given.get("non_blocking", False))
        return _mark(tensor.clone(), there=True)

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
        if _is_there(target):
            self._check_upload(source, non_blocking)
            return target.copy_(source)
        assert non_blocking, "the host waits for a copy"
        assert getattr(target, "is_pinned_there", False), "a copy to memory that is not pinned blocks"
        fill_tensor(target)
        self._downloads.append((target, source.clone()))
        return target

    def _check_upload(self, source: Tensor, non_blocking: bool) -> None:
        assert non_blocking, "the host waits for a copy"
        assert getattr(source, "is_pinned_there", False), "a copy from memory that is not pinned blocks"
        self.uploads += 1


def _is_there(tensor: object) -> bool:
    return bool(getattr(tensor, "is_there", False))


def _mark(tensor: Tensor, there: bool = False, pinned: bool = False) -> Tensor:
    if there:
        tensor.is_there = True  # type: ignore[attr-defined]
    if pinned:
        tensor.is_pinned_there = True  # type: ignore[attr-defined]
    return tensor


@contextmanager
def pretend_cuda() -> Iterator[PretendCuda]:
    """Enter it, with events to match."""
    mode = PretendCuda()

    class Event:
        def __init__(self, device: torch.device) -> None:
            assert device.type == "cuda"
            self._is_recorded = False

        def record(self) -> None:
            self._is_recorded = True

        def synchronize(self) -> None:
            assert self._is_recorded, "an event that was not recorded is no reason to wait"
            with torch._C.DisableTorchFunction():
                mode.arrive()

    with pytest.MonkeyPatch.context() as patch, mode:
        # vLLM's worker for CPUs replaces both for its process.
        patch.setattr(torch, "Event", Event)
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: _mark(tensor.clone(), pinned=True))
        yield mode
