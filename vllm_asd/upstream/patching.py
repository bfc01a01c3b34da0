"""A patch is a record: what it replaces, what it expects there, why, and when it can go."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

_FIX = "install a vLLM that vllm-asd supports (`vllm-asd doctor` names it) or a newer vllm-asd"


class PatchError(RuntimeError):
    """The installed vLLM is not what a patch expects; the message is one line."""


@dataclass(frozen=True)
class Patch:
    """One vLLM attribute that ASD replaces, in the class or only on the instance that serves ASD.

    Attributes:
        target: ``module:attribute`` or ``module:Class.attribute``.
        parameters: The target's parameter names, in order; another signature is refused.
        why: What vLLM offers no official way for.
        remove_when: What would make it superfluous.
        process: Where it acts: front end, engine core or worker.
        instance: Only the one object is touched, and only when ASD is on; else the class or module.
        hot: Whether the target runs in every step or request; such a patch is never applied while ASD is off.
        exact: Whether the target takes these parameters and no others. If not, the patch reads them by name
            and others may stand between them (a Triton kernel gains arguments from release to release).
    """

    target: str
    parameters: tuple[str, ...]
    why: str
    remove_when: str
    process: str
    instance: bool = False
    hot: bool = False
    exact: bool = True

    def locate(self) -> tuple[Any, str]:
        """Import the owner (module or class) of the target and name the attribute.

        Raises:
            PatchError: The installed vLLM has no such name.
        """
        module_name, _, path = self.target.partition(":")
        *parents, name = path.split(".")
        try:
            owner: Any = importlib.import_module(module_name)
            for parent in parents:
                owner = getattr(owner, parent)
            getattr(owner, name)
        except (ImportError, AttributeError) as error:
            raise PatchError(
                f"{self.target} does not exist in the installed vLLM ({error}): {_FIX}"
            ) from None
        return owner, name

    def check(self) -> tuple[Any, str]:
        """Locate the target and compare its signature.

        Raises:
            PatchError: The name is gone or takes other parameters.
        """
        owner, name = self.locate()
        found = _parameters(getattr(owner, name))
        if not self.accepts(found):
            raise PatchError(
                f"{self.target} takes ({', '.join(found)}), expected ({', '.join(self.parameters)}): {_FIX}"
            )
        return owner, name

    def accepts(self, found: tuple[str, ...]) -> bool:
        """Whether a target with these parameters is the one expected."""
        return found == self.parameters if self.exact else set(self.parameters) <= set(found)

    def bind(self, instance: object, wrap: Wrap) -> None:
        """Replace the method on one object; its class stays as it is.

        Raises:
            PatchError: The object's class does not have the method that the record expects.
        """
        _, name = self.check()
        original = getattr(instance, name)
        found = _parameters(original)
        if found != tuple(p for p in self.parameters if p != "self"):
            raise PatchError(f"{type(instance).__name__}.{name} takes ({', '.join(found)}): {_FIX}")
        setattr(instance, name, functools.wraps(original)(wrap(original)))


class PatchSet:
    """The class and module patches in force in this process.

    Applying a record again is a no-op, a second record for the same target is refused, all can be undone.
    """

    def __init__(self) -> None:
        """Start with nothing patched."""
        self._applied: dict[str, tuple[Patch, Any, str, Any]] = {}

    def apply(self, patch: Patch, wrap: Wrap) -> None:
        """Replace the target by ``wrap(original)``.

        Raises:
            PatchError: The target is not what the record expects, or another record holds it.
        """
        if patch.target in self._applied:
            if self._applied[patch.target][0] is not patch:
                raise PatchError(f"{patch.target} is already patched by another record")
            return
        owner, name = patch.check()
        original = inspect.getattr_static(owner, name, getattr(owner, name))
        function = getattr(owner, name)
        replacement = functools.update_wrapper(wrap(function), function)
        is_static = isinstance(original, staticmethod)
        setattr(owner, name, staticmethod(replacement) if is_static else replacement)
        self._applied[patch.target] = (patch, owner, name, original)

    def undo_all(self) -> None:
        """Put every original back, last patch first."""
        for _, owner, name, original in reversed(self._applied.values()):
            setattr(owner, name, original)
        self._applied.clear()

    def __contains__(self, patch: Patch) -> bool:
        """Whether this record is in force here."""
        entry = self._applied.get(patch.target)
        return entry is not None and entry[0] is patch


APPLIED = PatchSet()


def _parameters(target: object) -> tuple[str, ...]:
    """Name the parameters of a function, a bound method, a Triton kernel or one of vLLM's dispatchers."""
    if not inspect.isroutine(target):
        # Both are objects that keep the function they were made from.
        target = getattr(target, "__wrapped__", getattr(target, "fn", target))
    return tuple(inspect.signature(target).parameters)  # type: ignore[arg-type]
