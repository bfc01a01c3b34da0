"""What is installed, and what each part of it may import."""

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "vllm_asd"
# What a serving process never needs; the commands and their tools do.
TOOLS_ONLY = (
    "typer",
    "rich",
    "pandas",
    "matplotlib",
    "lm_eval",
    "scipy",
    "statsmodels",
    "openai",
    "datasets",
)
COMMANDS = ("cli", "tools")


def imports(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return found


def modules(*parts: str) -> list[Path]:
    return sorted(path for part in parts for path in (PACKAGE / part).rglob("*.py"))


def is_runtime(path: Path) -> bool:
    return path.relative_to(PACKAGE).parts[0] not in COMMANDS


@pytest.mark.parametrize(
    "path", [path for path in modules(".") if is_runtime(path)], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_the_runtime_imports_no_tool(path: Path) -> None:
    named = {name for name in imports(path) if name.startswith(("vllm_asd.tools", "vllm_asd.cli", "eval"))}
    assert not named


@pytest.mark.parametrize("path", modules("policy", "kernels"), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_rule_and_its_kernels_know_no_vllm(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] == "vllm"}


@pytest.mark.parametrize("path", modules("tools", "cli"), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_what_is_installed_needs_nothing_of_the_checkout(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] in ("eval", "tests", "benchmarks")}


def loaded_by(program: str) -> set[str]:
    """The modules that a fresh process has after running a program."""
    program = f"import json, sys\n{program}\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_loading_the_plugin_loads_no_tool() -> None:
    """In every process of every vLLM on the machine, whether or not it asks for ASD."""
    loaded = loaded_by("import vllm_asd.plugin; vllm_asd.plugin.register()")
    assert not {name for name in loaded if name.startswith(("vllm_asd.tools", "vllm_asd.cli", "eval"))}
    # vLLM brings some of these along itself; our own modules must not.
    ours = loaded_by("import vllm_asd.plugin")
    assert not {name for name in ours if name.split(".")[0] in TOOLS_ONLY}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in a wheel built from a copy of the checkout."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(
        ["git", "ls-files", "vllm_asd", "pyproject.toml", "README.md", "LICENSE", "eval/__init__.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.split()
    for name in tracked:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(built), "--quiet", "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=source, timeout=240)
    if done.returncode:
        pytest.fail(f"no wheel: {done.stderr[-800:]}")
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path).namelist()


def test_the_wheel_has_one_top_level_package(wheel: list[str]) -> None:
    """A package called `eval` would shadow, or be shadowed by, the user's own."""
    top = {name.split("/")[0] for name in wheel}
    assert {name for name in top if not name.endswith(".dist-info")} == {"vllm_asd"}


def test_the_wheel_has_what_the_commands_read(wheel: list[str]) -> None:
    """Tasks and their data, and the marker of types."""
    assert "vllm_asd/py.typed" in wheel
    for path in (PACKAGE / "tools" / "tasks").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in wheel


def test_a_folder_with_an_eval_of_its_own_does_not_matter(tmp_path: Path) -> None:
    """The commands start processes in the user's folder, where `eval.py` may be anything."""
    (tmp_path / "eval.py").write_text("raise SystemExit('the user')\n")
    for module in ("vllm_asd.tools.bench.profile", "vllm_asd.tools.server", "vllm_asd.tools.demo"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-500:]
        assert "the user" not in done.stdout + done.stderr
