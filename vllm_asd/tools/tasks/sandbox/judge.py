"""The process of the tests: runs them on values that the program's process hands over."""

import ast
import builtins
import importlib
from typing import Any

from .candidate import NAMESPACE
from .remote import Candidate

# Under these names the tests get the real thing, whatever the program calls so.
_MODULES = (
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "math", "operator", "random", "re", "statistics", "string", "typing",
)  # fmt: skip


def judge(channel: int, job: dict[str, str]) -> None:
    """Load the program there, run the tests here.

    Args:
        channel: To the program's process.
        job: `program`, `tests`, `helpers` (trusted code that the tests may use) and `entry_point` (the name
            that is the program's in any case, or "").

    Raises:
        BaseException: The program or a test failed.
    """
    candidate = Candidate(channel)
    candidate.ask("load", NAMESPACE, job["program"])
    namespace: dict[str, Any] = {"__name__": "tests"}
    exec(compile(job["helpers"], "helpers.py", "exec", dont_inherit=True), namespace)
    namespace.pop(job["entry_point"], None)
    tests = ast.parse(job["tests"], "tests.py")
    for name in _asked_of_the_program(tests, namespace, job["entry_point"]):
        try:
            value = candidate.ask("item", NAMESPACE, name)
        except KeyError:
            continue
        namespace[name] = importlib.import_module(name) if name in _MODULES else value
    exec(compile(tests, "tests.py", "exec", dont_inherit=True), namespace)
    # A test that swallows everything may have swallowed that the program is gone.
    candidate.ask("len", NAMESPACE)


def _asked_of_the_program(tests: ast.Module, known: dict[str, Any], entry_point: str) -> set[str]:
    """Names in the tests that the program defines; Python's own only where there is no other.

    MBPP tests a function named `sum`. Otherwise a program could pass by defining an `abs` of its own.
    """
    read = {
        node.id for node in ast.walk(tests) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    wanted = {name for name in read - set(known) if not hasattr(builtins, name)} | (read & {entry_point})
    return wanted or read
