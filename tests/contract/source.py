"""A patch record held against vLLM's source: parsed, not imported, so any version will do.

    python -m tests.contract.source 0.33.0 FOLDER       # unpack that version's source into FOLDER

The tests find the folder through the environment variable `VLLM_ASD_OTHER_VLLM`.
"""

import ast
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vllm_asd.upstream.patching import Patch


class ContractError(LookupError):
    """The source does not hold what a record expects."""


def check_against_source(patch: Patch, root: Path) -> None:
    """Compare a record's target and parameters with the source below `root`, which holds the folder `vllm`.

    Raises:
        ContractError: The module or the name is gone, or takes other parameters.
    """
    found = parameters_in_source(patch.target, root)
    if not patch.accepts(found):
        raise ContractError(f"{patch.target} takes {found}, expected {patch.parameters}")


def parameters_in_source(target: str, root: Path) -> tuple[str, ...]:
    """Name the parameters of `module:attribute` or `module:Class.attribute`; follows `from ... import`.

    Raises:
        ContractError: There is no such function.
    """
    module, _, path = target.partition(":")
    *classes, name = path.split(".")
    tree = _parse(module, root)
    scope: list[ast.stmt] = tree.body
    for class_name in classes:
        scope = _class_body(class_name, scope, target)
    for node in _statements(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return _parameters(node.args)
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            return parameters_in_source(f"{node.module}:{original}", root)
    raise ContractError(f"{target} is not in the source below {root}")


def _parse(module: str, root: Path) -> ast.Module:
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return ast.parse(path.read_text())
    raise ContractError(f"the source below {root} has no module {module}")


def _class_body(name: str, scope: list[ast.stmt], target: str) -> list[ast.stmt]:
    for node in _statements(scope):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node.body
    raise ContractError(f"{target}: the source has no class {name}")


def _statements(scope: list[ast.stmt]) -> list[ast.stmt]:
    """List a scope's statements, those under `if` and `try` included, the last first: it is in force."""
    found: list[ast.stmt] = []
    for node in scope:
        found.append(node)
        if isinstance(node, ast.If | ast.Try):
            found += _statements([*node.body, *node.orelse])
    return found[::-1]


def _parameters(arguments: ast.arguments) -> tuple[str, ...]:
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg:
        names.append(arguments.vararg.arg)
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append(arguments.kwarg.arg)
    return tuple(names)


def unpack_release(version: str, folder: Path) -> None:
    """Download a release's wheel (a third of a gigabyte) and keep its Python files."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        subprocess.run([*command, "--only-binary=:all:", f"vllm=={version}"], check=True)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".py")])


if __name__ == "__main__":
    unpack_release(sys.argv[1], Path(sys.argv[2]))
