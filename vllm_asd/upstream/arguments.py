"""Changing what another function is given, by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def with_arguments(
    original: Callable[..., Any], change: Callable[[dict[str, Any]], None]
) -> Callable[..., Any]:
    """Let ``change`` rewrite the arguments of every call, in place, before ``original`` gets them.

    What the caller leaves out is not among them.
    """
    signature = inspect.signature(original)

    def call_changed(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        change(call.arguments)
        return original(*call.args, **call.kwargs)

    return call_changed
