"""The tests' view of what the program defines: plain data as it is, the rest by asking for it."""

# Each operator does in the program's process what it says.
# ruff: noqa: D102, D105

import builtins
from typing import Any

from .wire import decode, encode, receive, send


class CandidateError(Exception):
    """The program raised something that is no exception of Python's own."""


class Candidate:
    """Asks the program's process."""

    def __init__(self, channel: int) -> None:
        """Remember the channel to it."""
        self._channel = channel

    def ask(self, do: str, of: int, *arguments: Any, **named: Any) -> Any:
        """Have something done to what the number `of` stands for.

        Raises:
            ChannelBroken: The process has gone.
            Exception: What the program raised, if Python has it, else CandidateError.
        """
        question = {"do": do, "of": of, "arguments": self._encode(arguments), "named": self._encode(named)}
        send(self._channel, question)
        answer = receive(self._channel)
        if "raised" in answer:
            raise _exception_of(answer["raised"])
        return decode(answer["value"], self._resolve)

    def _encode(self, value: Any) -> Any:
        return encode(value, _number_of)

    def _resolve(self, number: int) -> "Remote":
        return Remote(self, number)


class Remote:
    """Something that is no plain data and stays in the program's process. Equal to itself alone."""

    def __init__(self, candidate: Candidate, number: int) -> None:
        """Set past `__setattr__`, which is the program's."""
        self.__dict__.update(_candidate=candidate, _number=number)

    def _ask(self, do: str, *arguments: Any, **named: Any) -> Any:
        candidate: Candidate = self.__dict__["_candidate"]
        return candidate.ask(do, self.__dict__["_number"], *arguments, **named)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ask("call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("setattr", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __iter__(self) -> Any:
        return self._ask("iter")

    def __next__(self) -> Any:
        return self._ask("next")

    def __len__(self) -> int:
        return int(self._ask("len"))

    def __bool__(self) -> bool:
        return bool(self._ask("bool"))

    def __str__(self) -> str:
        return str(self._ask("str"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other.__dict__["_number"] == self.__dict__["_number"]

    def __hash__(self) -> int:
        return hash(self.__dict__["_number"])


def _number_of(value: object) -> int:
    if not isinstance(value, Remote):
        raise TypeError(f"{type(value).__name__} is not handed to the program")
    number: int = value.__dict__["_number"]
    return number


def _exception_of(names: list[str]) -> BaseException:
    for name in names:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return CandidateError() if kind is Exception else kind()
    return CandidateError()
