"""`vllm-asd plan`: what it prints, writes and refuses."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.spec_decode_metrics import exposition
from vllm_asd.cli.plan import app

GIVEN = ("--acceptance", "0.7", "--asd-acceptance", "0.8", "--draft-cost", "0.05")


def plan(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result.output


def as_json(*arguments: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(plan(*arguments, "--json"))
    return loaded


@pytest.fixture
def served() -> Iterator[tuple[str, dict[str, str]]]:
    """A server whose pages the test sets."""
    pages: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            self.send_response(200 if page is not None else 404)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", pages
    server.shutdown()
    thread.join()
    server.server_close()


def test_help_shows_an_example() -> None:
    assert "Example: vllm-asd plan --acceptance 0.7" in plan("--help")


def test_table_marks_each_arms_best() -> None:
    lines = plan(*GIVEN).splitlines()
    marked = {line.split()[0]: line for line in lines if "*" in line and line.split()[0].isdigit()}
    assert marked.keys() == {"6", "8"}
    assert "3.059" in marked["6"]
    assert "*2.353" in marked["6"]
    assert any(line.startswith("strict: best k=6") for line in lines)


def test_a_narrow_terminal_cuts_no_figure() -> None:
    joint = ("--acceptance", "0.9,0.8,0.7", "--asd-acceptance", "0.95,0.9,0.85", "--draft-cost", "0.1")
    result = CliRunner().invoke(app, joint, env={"COLUMNS": "80"})
    assert "…" not in result.output
    assert result.output.count("pays if c <") == 2


def test_json_is_the_published_case() -> None:
    strict = as_json(*GIVEN)["arms"]["strict"]
    assert (strict["best_k"], strict["loses"], len(strict["rows"])) == (6, False, 16)
    assert strict["rows"][5]["expected_tokens"] == pytest.approx(3.058819, abs=1e-12)


def test_milliseconds() -> None:
    times = ("--draft-ms", "3", "--verify-ms", "50", "--overhead-ms", "2", "--baseline-ms", "40")
    rows = as_json("--acceptance", "0.2", *times)["arms"]["strict"]["rows"]
    assert f"{rows[3]['ms_per_token']:.2f}" == "51.22"


def test_both_units_say_the_same() -> None:
    times = ("--draft-ms", "3", "--verify-ms", "4=50,8=60", "--overhead-ms", "2", "--baseline-ms", "40")
    steps = ("--draft-cost", "0.075", "--verify-cost", "4=1.25,8=1.5", "--overhead", "0.05")
    in_ms = as_json("--acceptance", "0.6", *times)["arms"]["strict"]["rows"]
    in_steps = as_json("--acceptance", "0.6", *steps, "--baseline-ms", "40")["arms"]["strict"]["rows"]
    assert all(a == pytest.approx(b) for a, b in zip(in_ms, in_steps, strict=True))
    # At k = 4 the round is 4 * 3 + 50 + 2 ms.
    assert in_steps[3]["ms_per_token"] == pytest.approx(64 / in_steps[3]["expected_tokens"])


def test_an_assumed_verification_cost_is_said() -> None:
    assert "ASSUMED" in plan(*GIVEN)
    assert "ASSUMED" not in plan(*GIVEN, "--verify-cost", "1")


def test_concurrency() -> None:
    loads = ("--verify-by-concurrency", "1=1,16=1.8,64=4", "--k", "6")
    output = plan(*GIVEN, *loads)
    assert "strict: at k=6 speculation LOSES from concurrency" in output
    found = as_json(*GIVEN, *loads)["arms"]["ASD"]["concurrency"]
    assert found["speedup"]["64"] < 1
    assert 16 < found["break_even"] < 64
    always = as_json(*GIVEN, "--verify-by-concurrency", "1=1,16=1.8", "--k", "6")["arms"]["ASD"][
        "concurrency"
    ]
    assert always["break_even"] is None
    assert "pays at every" in always["verdict"]


def test_laws() -> None:
    output = plan("--law", "0.5,0.3,0.2", "0.2,0.5,0.3")
    assert "0.15" in next(line for line in output.splitlines() if "TV to P" in line)
    laws = as_json("--law", "0.5,0.3,0.2", "0.7,0.2,0.1", "--gate", "0.01")["laws"]
    assert laws["naive"]["law"] == [0.6, 0.26, 0.14]
    assert laws["exact"]["tv_to_p"] == 0
    assert laws["ASD"] == laws["strict"]


class TestServer:
    def test_reads_both_arms(self, served: tuple[str, dict[str, str]]) -> None:
        url, pages = served
        totals = {"accepted_tokens": 8, "strict_accepted_tokens": 4}
        pages["/metrics"] = exposition((4, 2, 2, 0), totals, 4)
        for address in (url, f"{url}/", f"{url}/v1", f"{url}/metrics"):
            arms = as_json("--url", address, "--draft-cost", "0.05")["arms"]
            assert arms["ASD"]["rows"][3]["expected_tokens"] == 3.0
            assert arms["strict"]["rows"][3]["expected_tokens"] == pytest.approx(2.0)

    def test_without_counters(self, served: tuple[str, dict[str, str]]) -> None:
        url, pages = served
        pages["/metrics"] = "vllm:num_requests_running 0\n"
        output = plan("--url", url, "--draft-cost", "0.05", code=1)
        assert output.count("\n") == 1
        assert "without --speculative-config" in output

    def test_that_is_none_of_ours(self, served: tuple[str, dict[str, str]]) -> None:
        assert "answered 404" in plan("--url", served[0], "--draft-cost", "0.05", code=1)

    def test_that_is_down(self) -> None:
        with socket.socket() as unheard:
            unheard.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
            output = plan("--url", url, "--draft-cost", "0.05", code=1)
        assert output.startswith(f"vllm-asd plan: no server answers at {url}/metrics")
        assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--draft-cost", "0.1"), "give --acceptance"),
        (("--acceptance", "0.7"), "give --draft-cost"),
        (("--acceptance", "0.7", "--draft-ms", "3"), "need --baseline-ms"),
        (("--acceptance", "0.7", "--draft-ms", "3", "--overhead", "1"), "not both"),
        (("--acceptance", "0.5,0.6", "--draft-cost", "0.1"), "rises"),
        (("--acceptance", "0.5,x", "--draft-cost", "0.1"), "commas"),
        ((*GIVEN, "--url", "http://localhost:9"), "not both"),
        ((*GIVEN, "--verify-by-concurrency", "1=1"), "give --k"),
        ((*GIVEN, "--baseline-ms", "0"), "above 0"),
        (("--law", "0.5,0.5", "0.5,0.6"), "Q adds up to 1.1"),
        (("--law", "a", "b"), "P is a list"),
    ],
)
def test_one_line_per_mistake(arguments: tuple[str, ...], message: str) -> None:
    output = plan(*arguments, code=2)
    assert message in output
    assert output.count("\n") == 1


class TestPlot:
    def test_writes_a_picture(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        for name, more in (
            ("plain.png", ()),
            ("load.png", ("--verify-by-concurrency", "1=1,9=3", "--k", "4")),
        ):
            plan(*GIVEN, *more, "--plot", str(tmp_path / name))
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")

    def test_an_ending_that_is_no_format(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        assert "can't write" in plan(*GIVEN, "--plot", str(tmp_path / "plot.foo"), code=2)

    def test_without_matplotlib(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        output = plan(*GIVEN, "--plot", str(tmp_path / "plot.png"), code=1)
        assert output == "vllm-asd plan: --plot needs matplotlib: pip install matplotlib\n"


def test_the_assumption_stands_beside_the_speedup_it_makes() -> None:
    assumed = next(line for line in plan(*GIVEN).splitlines() if line.startswith("ASD: best k=8"))
    assert "3.092x (if verifying 9 tokens costs as much as one)" in assumed
    assert "as much as one" not in plan(*GIVEN, "--verify-cost", "1.3")


def test_asd_below_strict_is_warned_of() -> None:
    swapped = ("--acceptance", "0.8", "--asd-acceptance", "0.7", "--draft-cost", "0.05")
    assert "WARNING: ASD yields fewer tokens than strict at k=1-16." in plan(*swapped)
    assert any(note.startswith("WARNING") for note in as_json(*swapped)["notes"])
    assert "WARNING" not in plan(*GIVEN)


def test_law_shows_what_the_exact_correction_is_made_of() -> None:
    pair = ("--law", "0.5,0.3,0.2", "0.2,0.5,0.3")
    assert "A = 0.7, Z = 0.3; a rejected draft is drawn from 1, 0, 0." in plan(*pair)
    found = as_json(*pair)["correction"]
    assert found == {"accepted": 0.7, "residual_mass": 0.3, "residual": [1.0, 0.0, 0.0]}
