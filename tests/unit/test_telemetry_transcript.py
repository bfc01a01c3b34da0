"""`vllm-asd explain`: the exceptions stand where they were kept, beside what the target would have said."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from vllm_asd.cli import explain
from vllm_asd.config import RequestLimits
from vllm_asd.telemetry.request_report import new_report
from vllm_asd.tools.explain import html as html_page
from vllm_asd.tools.explain import terminal
from vllm_asd.tools.explain.transcript import NUM_LEVELS, TranscriptError, read_transcript

WORDS = ["The", " sky", " is", " <blue>", "\n", "because", " of", " air", "."]


def report(mode: str = "enforce") -> dict[str, Any]:
    limits = RequestLimits(2.0, 0.25, 2, shadow=mode == "shadow")
    payload = new_report(limits, detailed=True)
    trace = [
        {
            "position": position,
            "token_id": 10 + position,
            "target_token_id": 90 + position,
            "regret": regret,
            "logprob": -1.0 - regret,
            "target_logprob": -1.0,
        }
        for position, regret in ((1, 0.5), (3, 1.25))
    ]
    return payload | {
        "exceptions": 2,
        "regret": 1.75,
        "verified_blocks": 2,
        "accepted_tokens": 7,
        "strict_accepted_tokens": 2,
        "exhausted_at_token": 6,
        "exception_trace": trace,
    }


def completion(mode: str = "enforce") -> dict[str, Any]:
    tops: list[dict[str, float]] = [{word: -0.1} for word in WORDS]
    tops[1] = {" sky": -1.5, " sea": -1.0}
    tops[3] = {" <blue>": -2.25, " & wide": -1.0}
    return {
        "model": "m<1>",
        "choices": [{"text": "".join(WORDS), "logprobs": {"tokens": WORDS, "top_logprobs": tops}}],
        "metrics": {"speculative_decoding": {"asd": report(mode)}},
    }


def chat_completion() -> dict[str, Any]:
    response = completion()
    logprobs = response["choices"][0].pop("logprobs")
    content = [
        {
            "token": word,
            "logprob": top[word],
            "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()],
        }
        for word, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
    ]
    response["choices"][0]["logprobs"] = {"content": content}
    return response


def test_shows_what_each_phase_may_spend() -> None:
    """Scope "phases": both pools, on the terminal and on the page, and the chart up to their sum."""
    response = completion()
    limits = RequestLimits(2.0, 0.25, 2, answer=RequestLimits(1.0, 0.125, 1))
    phases = new_report(limits, detailed=False)["phases"]
    phases["reasoning"] |= {"exceptions": 2, "regret_spent": 1.75}
    response["metrics"]["speculative_decoding"]["asd"]["phases"] = phases
    transcript = read_transcript(response)
    summary = dict(transcript.summary())
    assert summary["regret"] == "1.75 of 3 nats"
    assert summary["in the reasoning"] == "2 exceptions, 1.75 of 2 nats"
    assert summary["in the answer"] == "0 exceptions, 0.00 of 1 nats"
    page = html_page.render(transcript)
    assert "reasoning 0.25, at most 2 per block; answer 0.125, at most 1 per block" in page
    assert "the budget, 3 nats" in page


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"guard": "on", "guarded_at_token": 7}, "nothing relaxed from token 7"),
        ({"guard": "on"}, "on, never tripped"),
        ({}, "off"),
    ],
)
def test_shows_where_the_guard_tripped(fields: dict[str, Any], said: str) -> None:
    """On the terminal and on the page."""
    response = completion()
    response["metrics"]["speculative_decoding"]["asd"] |= fields
    transcript = read_transcript(response)
    console = Console(width=100, record=True, color_system=None, file=io.StringIO())
    console.print(terminal.render(transcript, console))
    assert re.search(rf"^guard +{said} *$", console.export_text(), re.MULTILINE)
    assert f"<dt>guard</dt><dd>{said}</dd>" in html_page.render(transcript)


def test_a_saved_response_of_before_the_guard_can_be_read() -> None:
    response = completion()
    for field in ("guard", "guarded_at_token"):
        del response["metrics"]["speculative_decoding"]["asd"][field]
    assert dict(read_transcript(response).summary())["guard"] == "off"


@pytest.mark.parametrize("response", [completion(), chat_completion()], ids=["completion", "chat"])
def test_reads_both_kinds_of_response(response: dict[str, Any]) -> None:
    transcript = read_transcript(response)
    assert [piece.text for piece in transcript.pieces] == WORDS
    found = [(r.number, r.position, r.regret, r.other_text) for r in transcript.relaxations]
    assert found == [(1, 1, 0.5, " sea"), (2, 3, 1.25, " & wide")]


def test_under_shadow_names_the_draft_that_was_not_kept() -> None:
    transcript = read_transcript(completion("shadow"))
    assert transcript.other == "draft"
    assert [relaxation.other_text for relaxation in transcript.relaxations] == ["#11", "#13"]


def test_under_shadow_a_draft_among_the_likeliest_has_its_text() -> None:
    response = completion("shadow")
    response["choices"][0]["logprobs"]["top_logprobs"][1] = {" sky": -1.0, " sea": -1.5}
    assert read_transcript(response).relaxations[0].other_text == " sea"


def test_of_a_tie_the_kept_token_is_not_called_the_targets() -> None:
    response = completion()
    response["choices"][0]["logprobs"]["top_logprobs"][1] = {" sky": -1.0, " sea": -1.0}
    assert read_transcript(response).relaxations[0].other_text == " sea"


def test_without_alternatives_gives_the_id() -> None:
    response = completion()
    del response["choices"][0]["logprobs"]["top_logprobs"]
    assert read_transcript(response).relaxations[0].other_text == "#91"


@pytest.mark.parametrize(
    ("broken", "fix"),
    [
        ({"choices": [{}]}, "--per-request-spec-decode-metrics detailed"),
        ({"metrics": None, "choices": [{}]}, "ASD on"),
        ({**completion(), "choices": [{"text": "x"}]}, '"logprobs": 1'),
        ({"output": [], "metrics": completion()["metrics"]}, "no choices"),
    ],
)
def test_says_what_is_missing_and_how_to_get_it(broken: dict[str, Any], fix: str) -> None:
    with pytest.raises(TranscriptError, match=re.escape(fix)):
        read_transcript(broken)


def test_a_summary_level_response_is_told_from_a_detailed_one() -> None:
    response = completion()
    del response["metrics"]["speculative_decoding"]["asd"]["exception_trace"]
    with pytest.raises(TranscriptError, match="not summary"):
        read_transcript(response)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_terminal_shows_each_exception_once_beside_its_line(width: int) -> None:
    console = Console(width=width, record=True, color_system=None, file=io.StringIO())
    console.print(terminal.render(read_transcript(completion()), console))
    lines = console.export_text().splitlines()
    first = [line for line in lines if "sea" in line]
    assert len(first) == 1
    # Without colour: brackets around it, a bar for its regret, and the two probabilities.
    assert "[sky]¹" in first[0]
    assert re.search(r"¹ +▄ 0\.50 +␣sea +37% +22%$", first[0].rstrip())
    assert sum("␣&␣wide" in line for line in lines) == 1


@pytest.mark.parametrize("no_color", [True, False])
def test_a_terminal_shows_regret_with_and_without_colour(no_color: bool) -> None:
    """`NO_COLOR` leaves underlining: the number and the bar say the rest."""
    written = io.StringIO()
    console = Console(
        width=100, force_terminal=True, color_system="truecolor", no_color=no_color, file=written
    )
    console.print(terminal.render(read_transcript(completion()), console))
    output = written.getvalue()
    assert ("48;2;" in output) != no_color
    assert re.search(r"\x1b\[[0-9;]*4[;m][^\x1b]*sky¹", output)
    assert "█ 1.25" in output


def test_under_shadow_the_columns_are_the_drafts() -> None:
    console = Console(width=120, record=True, color_system=None, file=io.StringIO())
    console.print(terminal.render(read_transcript(completion("shadow")), console))
    text = console.export_text()
    # The draft's token was the less likely one, and the text holds the target's.
    assert re.search(r"#11 +22% +37%", text)
    assert "p said" in text
    assert "would have been kept" in text


def test_an_answer_without_exceptions_says_so() -> None:
    response = completion()
    response["metrics"]["speculative_decoding"]["asd"] |= {
        "exceptions": 0,
        "regret": 0,
        "exception_trace": [],
    }
    transcript = read_transcript(response)
    console = Console(width=100, record=True, color_system=None, file=io.StringIO())
    console.print(terminal.render(transcript, console))
    assert "no exception" in console.export_text()
    assert "No exception" in html_page.render(transcript)


class _Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.marks: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "path"):
            self.open.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag == "mark":
            self.marks.append(dict(attributes)["style"] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "path"):
            assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere() -> None:
    page = html_page.render(read_transcript(completion()))
    collector = _Collector()
    collector.feed(page)
    assert collector.open == []
    assert collector.links == []
    assert not re.search(r"@import|url\(|<script", page)
    assert "&lt;blue&gt;" in page
    assert "m&lt;1&gt;" in page


def test_the_page_marks_dearer_exceptions_stronger() -> None:
    collector = _Collector()
    collector.feed(html_page.render(read_transcript(completion())))
    cheap, dear, *legend = (int(style.removeprefix("--level:")) for style in collector.marks)
    assert cheap < dear
    assert legend == list(range(NUM_LEVELS))


def test_the_page_has_all_of_it_without_hovering() -> None:
    page = html_page.render(read_transcript(completion()))
    rows = re.findall(r"<tr><td>.*?</tr>", page)
    cells = [re.sub(r"<[^>]+>", "|", row) for row in rows]
    assert len(cells) == 2
    assert all(part in cells[0] for part in ("␣sky", "␣sea", "0.500", "36.8%", "22.3%"))


class TestCommand:
    def test_reads_a_file_and_writes_the_page(self, tmp_path: Path) -> None:
        (tmp_path / "r.json").write_text(json.dumps(completion()))
        page = tmp_path / "r.html"
        result = CliRunner().invoke(explain.app, [str(tmp_path / "r.json"), "--html", str(page)])
        assert result.exit_code == 0, result.output
        assert "1.75 of 2 nats" in result.output
        assert page.read_text().startswith("<!doctype html>")

    @pytest.mark.parametrize("text", ["{}", "nonsense", None])
    def test_ends_with_one_line_on_a_file_that_will_not_do(self, tmp_path: Path, text: str | None) -> None:
        path = tmp_path / "r.json"
        if text is not None:
            path.write_text(text)
        result = CliRunner().invoke(explain.app, [str(path)])
        assert result.exit_code == 2
        assert result.output.startswith("vllm-asd explain: ")
        assert len(result.output.splitlines()) == 1

    def test_refuses_a_missing_folder_before_it_asks(self, tmp_path: Path) -> None:
        """One line, and no request was sent: nothing listens on that port."""
        page = tmp_path / "missing" / "page.html"
        result = CliRunner().invoke(
            explain.app, ["--url", "localhost:9", "--prompt", "x", "--html", str(page)]
        )
        assert result.exit_code == 2
        assert "there is no folder" in result.output

    def test_says_that_nobody_answers(self) -> None:
        """A bare host and port will do as an address."""
        result = CliRunner().invoke(explain.app, ["--url", "localhost:9", "--prompt", "x"])
        assert result.exit_code == 1
        assert "no answer from the server" in result.output

    @pytest.mark.parametrize("text", ["asd_budget=2", "[2]"])
    def test_names_the_option_that_is_not_json(self, text: str) -> None:
        command = ["--url", "localhost:9", "--prompt", "x", "--limits", text]
        result = CliRunner().invoke(explain.app, command)
        assert result.exit_code == 2
        assert result.output.startswith(f"vllm-asd explain: --limits is not a JSON object but {text}")

    def test_takes_no_xargs_for_a_response_that_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "r.json").write_text(json.dumps(completion()))
        result = CliRunner().invoke(explain.app, [str(tmp_path / "r.json"), "--limits", "{}"])
        assert result.exit_code == 2
        assert "--limits, --url and --prompt are for asking a server" in result.output

    def test_sends_the_xargs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[dict[str, Any] | None] = []

        def answer(_url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            sent.append(body)
            return chat_completion()

        monkeypatch.setattr(explain, "_request", answer)
        command = ["--url", "localhost:9", "--prompt", "x", "--served-model", "m"]
        for xargs in ([], ["--limits", '{"asd_budget": 0.5}']):
            assert CliRunner().invoke(explain.app, [*command, *xargs]).exit_code == 0
        assert [body["vllm_xargs"] for body in sent if body] == [{}, {"asd_budget": 0.5}]

    def test_needs_a_response_or_a_server(self) -> None:
        result = CliRunner().invoke(explain.app, ["--url", "http://localhost:1"])
        assert result.exit_code == 2
        assert "--prompt" in result.output
