"""What the two processes tell each other: JSON behind its length, and values as plain data.

A value is written as itself if it is None, a bool or a string, else as a list: a tag, then its parts. What
is no plain data stays where it is and is written as a number that stands for it.
"""

import builtins
import json
import os
from collections.abc import Callable
from typing import Any

_LENGTH_BYTES = 4
_MOST_BYTES = 16 * 1024**2
HANDLE = "handle"
_TYPES = tuple(kind for kind in vars(builtins).values() if isinstance(kind, type))


class ChannelBroken(BaseException):
    """The other process has gone or wrote nonsense; no `except Exception` of a test takes it for an error."""


def send(channel: int, message: object) -> None:
    """Write one message."""
    body = json.dumps(message).encode()
    rest = memoryview(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    try:
        while rest:
            rest = rest[os.write(channel, rest) :]
    except OSError as error:
        raise ChannelBroken(str(error)) from None


def receive(channel: int) -> dict[str, Any]:
    """Read one message.

    Raises:
        ChannelBroken: The other end was closed, or this is no message.
    """
    size = int.from_bytes(_read(channel, _LENGTH_BYTES), "big")
    if size > _MOST_BYTES:
        raise ChannelBroken("a message is too long")
    try:
        message = json.loads(_read(channel, size))
    except (ValueError, RecursionError) as error:
        raise ChannelBroken(str(error)) from None
    if not isinstance(message, dict):
        raise ChannelBroken("a message is no object")
    return message


def _read(channel: int, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = os.read(channel, size)
        except OSError as error:
            raise ChannelBroken(str(error)) from None
        if not part:
            raise ChannelBroken("the other process has gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value: Any, refer: Callable[[Any], int]) -> Any:
    """Write a value; subclasses are written as the plain type they derive from.

    Args:
        value: Anything.
        refer: Gives what is no plain data a number, or raises TypeError.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", hex(value)]  # in decimal, Python refuses long ones
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if isinstance(value, range):
        return ["range", *(hex(part) for part in (value.start, value.stop, value.step))]
    if isinstance(value, dict):
        return ["dict", *([encode(key, refer), encode(item, refer)] for key, item in value.items())]
    for tag, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            return [tag, *(encode(item, refer) for item in value)]
    if any(value is kind for kind in _TYPES):
        return ["type", value.__name__]
    return [HANDLE, refer(value)]


def decode(written: Any, resolve: Callable[[int], Any]) -> Any:
    """Read what `encode` wrote; `resolve` finds what a number stands for."""
    if not isinstance(written, list):
        return written
    tag, *parts = written
    if tag in _SCALARS:
        return _SCALARS[tag](*parts)
    if tag == HANDLE:
        return resolve(*parts)
    if tag == "dict":
        return {decode(key, resolve): decode(item, resolve) for key, item in parts}
    return _COLLECTIONS[tag](decode(item, resolve) for item in parts)


_SCALARS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "bytes": bytes.fromhex,
    "type": {kind.__name__: kind for kind in _TYPES}.__getitem__,
    "range": lambda *ends: range(*(int(end, 16) for end in ends)),
}
_COLLECTIONS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
