"""Whatever a command is given, it ends with one line and a status; never with a traceback."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from vllm_asd import cli
from vllm_asd.cli import ending, options
from vllm_asd.tools.usage import BadUsage

DEEP = "[" * 100_000
HUGE = "9" * 5000
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "zero": b"\0" * 64,
    "list": b"[1, 2]",
    "null": b"null",
    "number": b"7",
    "text": b"nonsense",
    "nan": b'{"asd_budget": NaN}',
    "inf": b'{"choices": [{}], "metrics": {"speculative_decoding": {"asd": {"exception_trace": Infinity}}}}',
    "huge": f'{{"asd_budget": {HUGE}}}'.encode(),
    "deep": DEEP.encode(),
    "unknown": b'{"asd_bugdet": 1, "speculative-config": {"asd_bugdet": 1}}',
    "half": b'{"choices": [{"logprobs": {}}], "metrics": {"speculative_decoding": {"asd": []}}}',
    "wrong kinds": b'{"model": 5, "speculative-config": {"num_speculative_tokens": "5", "method": 3}}',
}
COSTS = ("--acceptance", "0.5", "--draft-cost", "0.1")
FILES = [*CONTENTS, "directory", "missing"]
DEAD = "http://127.0.0.1:1"
PAIR = ["--model", "m", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']
OBJECTS = [
    *("", "[2]", "null", "7", "nonsense", "{", DEEP, f'{{"asd_budget": {HUGE}}}', '{"asd_budget": 1e999}'),
    *('{"asd_bugdet": 1}', '{"asd_budget": NaN}', '{"asd_budget": -1}', '{"asd_budget": "2"}'),
    '{"asd_block_cap": 1e300}',
]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def assert_one_line(result: Result, command: str, code: int = 2) -> None:
    assert "Traceback" not in result.output
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith(f"vllm-asd {command}: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert "please report" not in result.stderr
    assert len(result.stderr) < 1000


@pytest.fixture
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """A bad file with this ending."""

    def make(ending: str) -> Path:
        path = tmp_path / f"bad{ending}"
        if request.param == "directory":
            path.mkdir()
        elif request.param != "missing":
            path.write_bytes(CONTENTS[request.param])
        return path

    return make


def calibrate(tmp_path: Path, *more: object) -> Result:
    pytest.importorskip("openai")
    good = tmp_path / "good.jsonl"
    good.write_text("".join(json.dumps({"id": i, "prompt": f"{i}?"}) + "\n" for i in range(4)))
    own = ("--output", tmp_path / "out", "--freeze", tmp_path / "frozen.yaml", "--url", DEAD)
    given = () if "--data" in more else ("--data", good)
    return invoke("calibrate", *own, *given, *more)


@pytest.mark.parametrize("file", FILES, indirect=True)
class TestFile:
    def test_explain(self, file: Callable[[str], Path]) -> None:
        assert_one_line(invoke("explain", file(".json")), "explain")

    def test_explain_limits(self, file: Callable[[str], Path]) -> None:
        asked = ("explain", "--url", DEAD, "--prompt", "x")
        assert_one_line(invoke(*asked, "--limits", file(".yaml")), "explain")

    def test_audit_limits(self, file: Callable[[str], Path], tmp_path: Path) -> None:
        pytest.importorskip("lm_eval")
        asked = ("audit", "--data", "builtin", "--url", DEAD, "--output", tmp_path / "out")
        assert_one_line(invoke(*asked, "--limits", file(".yaml")), "audit")

    def test_audit_data(self, file: Callable[[str], Path], tmp_path: Path) -> None:
        pytest.importorskip("lm_eval")
        given = ("--data", file(".jsonl"), "--tasks", "gsm8k", "--output", tmp_path / "out")
        assert_one_line(invoke("audit", "--url", DEAD, *given), "audit")

    def test_calibrate_data(self, file: Callable[[str], Path], tmp_path: Path) -> None:
        assert_one_line(calibrate(tmp_path, "--data", f"a={file('.jsonl')}", *PAIR), "calibrate")

    def test_calibrate_server_config(self, file: Callable[[str], Path], tmp_path: Path) -> None:
        assert_one_line(calibrate(tmp_path, "--server-config", file(".yaml")), "calibrate")

    def test_doctor_server_config(self, file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        """A mapping that says nothing to vLLM is no mistake of the command line: doctor may judge it."""
        monkeypatch.setattr("vllm_asd.cli.doctor.examine", lambda *_: [])
        path = file(".yaml")
        result = invoke("doctor", "--server-config", path)
        if path.is_file() and path.read_bytes().startswith(b"{"):
            assert "Traceback" not in result.output
            assert result.exit_code in (0, 1, 2)
        else:
            assert_one_line(result, "doctor")

    def test_bench(self, file: Callable[[str], Path], tmp_path: Path) -> None:
        for needed in ("vllm", "matplotlib", "pandas"):
            pytest.importorskip(needed)
        out = ("--output", tmp_path / "out")
        assert_one_line(invoke("bench", *PAIR, *out, "--data", file(".jsonl")), "bench")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", FILES, indirect=True)
@pytest.mark.parametrize("option", ["--server-config", "--trace"])
def test_bench_files(file: Callable[[str], Path], option: str, tmp_path: Path) -> None:
    for needed in ("vllm", "matplotlib", "pandas"):
        pytest.importorskip(needed)
    given = ("--model", "m") if option == "--server-config" else PAIR
    result = invoke("bench", *given, "--output", tmp_path / "out", option, file(".yaml"))
    assert_one_line(result, "bench")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", OBJECTS, ids=lambda text: text[:30])
class TestObject:
    def test_limits(self, text: str, tmp_path: Path) -> None:
        pytest.importorskip("lm_eval")
        assert_one_line(invoke("explain", "--url", DEAD, "--prompt", "x", "--limits", text), "explain")
        asked = ("audit", "--data", "builtin", "--url", DEAD, "--output", tmp_path / "out")
        assert_one_line(invoke(*asked, "--limits", text), "audit")

    def test_speculative_config(self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for needed in ("vllm", "matplotlib", "pandas"):
            pytest.importorskip(needed)
        given = ("--model", "m", "--speculative-config", text)
        assert_one_line(calibrate(tmp_path, *given), "calibrate")
        assert_one_line(invoke("bench", *given, "--output", tmp_path / "out"), "bench")
        monkeypatch.setattr("vllm_asd.cli.doctor.examine", lambda *_: [])
        if not text.startswith('{"'):
            assert_one_line(invoke("doctor", *given), "doctor")


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain",),
        ("explain", "a", "b"),
        ("explain", "--url", DEAD),
        ("explain", "--max-tokens", HUGE),
        ("audit", "--url", DEAD),
        ("audit", "--data", "builtin", "--tasks", "nothing"),
        ("audit", "--data", "builtin", "--fail-on", "worse"),
        ("audit", "--data", "builtin", "--concurrency", "1,2"),
        ("audit", "--data", "builtin", "--concurrency", HUGE),
        ("audit", "--data", "builtin", "--max-tokens", HUGE),
        ("audit", "--data", "builtin", "--margin", "0"),
        ("bench", "--method", "eagle3"),
        ("bench", "--model", "m", "--method", "eagle3"),
        ("bench", *PAIR, "--concurrency", "nan"),
        ("bench", *PAIR, "--concurrency", HUGE),
        ("bench", *PAIR, "--data", "a", "--data", "b"),
        ("calibrate",),
        ("doctor", "--speculative-config", "{}"),
        ("plan",),
        ("plan", "--acceptance", "nan", "--draft-cost", "0.1"),
        ("plan", "--acceptance", "1e999", "--draft-cost", "0.1"),
        ("plan", "--acceptance", "0.5", "--draft-cost", "nan"),
        ("plan", "--acceptance", "0.5", "--draft-cost", "inf"),
        ("plan", "--acceptance", "0.5", "--draft-cost", "0.1", "--verify-cost", "nan"),
        ("plan", "--acceptance", "0.5", "--draft-cost", "0.1", "--overhead", "nan"),
        ("plan", "--acceptance", "0.5", "--draft-cost", "0.1", "--baseline-ms", "nan"),
        ("plan", "--acceptance", "0.5", "--draft-ms", "1", "--baseline-ms", "nan"),
        ("plan", "--acceptance", "0.5", "--draft-ms", "1", "--baseline-ms", "0"),
        ("plan", "--acceptance", "0.5", "--draft-ms", "1e308", "--baseline-ms", "1e-308"),
        (
            "plan",
            "--acceptance",
            "0.5",
            "--draft-cost",
            "0.1",
            "--verify-by-concurrency",
            "1=nan",
            "--k",
            "1",
        ),
        ("plan", "--acceptance", "0.5", "--draft-cost", "0.1", "--k", HUGE),
        ("plan", "--acceptance", "0.5", "--draft-cost", "0.1", "--plot", "nowhere/x.png"),
        ("plan", "--law", "0.5,0.5", "nan,1"),
        ("plan", "--law", "1e-99999999,1", "1,0"),
        ("plan", "--law", "1/0,1", "1,0"),
        ("plan", "--law", "1", "1", "--gate", "nan"),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_arguments(arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for needed in ("vllm", "matplotlib", "pandas", "lm_eval", "openai"):
        pytest.importorskip(needed)
    result = invoke(*arguments)
    assert_one_line(result, arguments[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["audit", "bench", "calibrate"])
def test_a_folder_of_something_else(command: str, tmp_path: Path) -> None:
    for needed in ("vllm", "matplotlib", "pandas", "lm_eval", "openai"):
        pytest.importorskip(needed)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    given = {"audit": ("audit", "--data", "builtin", "--url", DEAD), "bench": ("bench", *PAIR)}
    out = ("--output", tmp_path / "out")
    result = calibrate(tmp_path, *PAIR) if command == "calibrate" else invoke(*given[command], *out)
    assert_one_line(result, command)
    assert "belongs to something else: it holds thesis.txt" in result.stderr


def ending_with(error: BaseException, output: Path | None = None) -> Result:
    app = typer.Typer(add_completion=False)

    @options.register(app, "fails")
    def main() -> None:
        if output is None:
            raise error
        with ending.keeping(output):
            raise error

    return CliRunner().invoke(app, [])


class Ours(Exception):
    """As if it stood in the package."""


Ours.__module__ = "vllm_asd.tools.somewhere"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BadUsage("wrong"), 2, "wrong"),
        (ValueError("two\nlines"), 1, "two lines"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 1, "x.json: No such file or directory"),
        (ConnectionError("gone"), 1, "gone"),
        (RuntimeError("it failed"), 1, "it failed"),
        (Ours("the end of its log:\n  line"), 1, "the end of its log:\n  line"),
        (ImportError("no module", name="scipy"), 1, "this needs scipy: pip install 'vllm-asd[eval]'"),
        (KeyboardInterrupt(), 130, "stopped"),
        (typer.BadParameter("no"), 2, "Invalid value: no"),
    ],
)
def test_status_and_line(error: BaseException, code: int, said: str) -> None:
    result = ending_with(error)
    assert (result.exit_code, result.stderr) == (code, f"vllm-asd fails: {said}\n")


def test_a_mistake_of_ours_says_where() -> None:
    result = ending_with(KeyError("key"))
    assert result.exit_code == 1
    assert result.stderr.startswith("vllm-asd fails: unexpected KeyError at test_cli_bad_input.py:")
    assert result.stderr.count("\n") == 1


def test_what_is_kept_is_said(tmp_path: Path) -> None:
    for error, code in ((KeyboardInterrupt(), 130), (RuntimeError("gone"), 1)):
        result = ending_with(error, tmp_path)
        assert result.exit_code == code
        assert f"what was finished is kept in {tmp_path}: run the same command again" in result.stderr
    assert "kept" not in ending_with(BadUsage("x"), tmp_path).stderr


def test_an_unknown_command_and_none() -> None:
    result = invoke("nothing")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "No such command 'nothing'" in result.stderr
    assert "Usage" in invoke().output


def explained(report: dict[str, Any], tmp_path: Path) -> Result:
    response = {
        "choices": [{"logprobs": {"tokens": ["a", "b"]}}],
        "metrics": {"speculative_decoding": {"asd": report}},
    }
    (tmp_path / "r.json").write_text(json.dumps(response))
    return invoke("explain", tmp_path / "r.json", "--html", tmp_path / "r.html")


def test_explain_checks_what_it_shows(tmp_path: Path) -> None:
    """Numbers that no server writes; each file differs from a good one in one place."""
    entry = {"position": 0, "regret": 0.5, "target_token_id": 3, "target_logprob": -0.1, "logprob": -0.6}
    good = {
        **{"mode": "enforce", "accepted_tokens": 2, "strict_accepted_tokens": 1, "verified_blocks": 1},
        **{"exceptions": 1, "regret": 0.5, "budget": 2.0, "reused_tokens": 0, "gate": 0.5, "block_cap": 1},
        "exception_trace": [entry],
    }
    assert explained(good, tmp_path).exit_code == 0
    bad: list[dict[str, Any]] = [
        *({**good, "exception_trace": [{**entry, "regret": value}]} for value in (math.nan, -1, "x", None)),
        *({**good, "exception_trace": [{**entry, "logprob": value}]} for value in (1e9, math.nan, "x")),
        *({**good, "exception_trace": value} for value in (None, 3, [3], [{}])),
        *({**good, key: "x"} for key in ("accepted_tokens", "verified_blocks", "regret", "budget", "gate")),
        *(
            {k: v for k, v in good.items() if k != key}
            for key in ("gate", "block_cap", "reused_tokens", "mode")
        ),
        {**good, "phases": 3},
        {**good, "phases": {"answer": {}}},
    ]
    for report in bad:
        assert_one_line(explained(report, tmp_path), "explain")
