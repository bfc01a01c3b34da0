"""The process of the program that a model wrote: loads it, then answers questions about it.

Nothing here decides anything. Whatever the program does to this module, to the channel or to the interpreter,
it can only change the answers that it gives.
"""

import operator
from collections.abc import Callable
from typing import Any

from .wire import decode, encode, receive, send

NAMESPACE = 0  # the number of the program's global names


def serve(channel: int) -> None:
    """Answer until the other process hangs up, which ends this one."""
    kept: list[Any] = [{"__name__": "__main__"}]
    numbers = {id(kept[NAMESPACE]): NAMESPACE}

    def refer(value: Any) -> int:
        number = numbers.setdefault(id(value), len(kept))
        if number == len(kept):
            kept.append(value)  # which also keeps its id its own
        return number

    while True:
        send(channel, _answer(receive(channel), refer, kept.__getitem__))


def _answer(
    question: dict[str, Any], refer: Callable[[Any], int], resolve: Callable[[int], Any]
) -> dict[str, Any]:
    try:
        arguments = decode(question["arguments"], resolve)
        named = decode(question["named"], resolve)
        value = _OPERATIONS[question["do"]](resolve(question["of"]), *arguments, **named)
        return {"value": encode(value, refer)}
    except BaseException as error:  # noqa: BLE001 - SystemExit is an answer, too
        return {"raised": [kind.__name__ for kind in type(error).__mro__]}


def _load(namespace: dict[str, Any], source: str) -> None:
    exec(compile(source, "program.py", "exec", dont_inherit=True), namespace)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "load": _load,
    "call": lambda function, /, *arguments, **named: function(*arguments, **named),
    "getattr": getattr,
    "setattr": setattr,
    "item": operator.getitem,
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
}
