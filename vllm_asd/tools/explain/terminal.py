"""A transcript on the terminal: the text on the left, what the target would have said on the right.

Nothing hangs on colour: an exception has a number and, where nothing can be underlined, brackets; its regret
has a bar.
"""

from __future__ import annotations

import math

from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from vllm_asd.tools.explain.transcript import Relaxation, Transcript, split_core, visible

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# From cheap to dear: dark text is legible on all of them, and the bars grow.
_COLOURS = ("#fff3b0", "#ffd97d", "#ffb45e", "#ff8c5a", "#ff6b6b")
_BARS = "▁▃▄▆█"
_REFUSED = "▏"
# Least width of the answer and most of a token; the other columns' and the space around all of them.
_LEFT, _TOKEN = 20, 16
_NUMBER, _REGRET, _P, _P_SAID = 3, 6, 5, 6
_FIXED = _NUMBER + _REGRET + _P + _P_SAID + 2 * 6


def render(transcript: Transcript, console: Console) -> RenderableType:
    """Lay the transcript out for a console of its width."""
    summary = Table.grid(padding=(0, 2))
    for label, value in transcript.summary():
        summary.add_row(Text(label, style="dim"), value)
    return Group(summary, Text(), _body(transcript, console), Text(), _legend(transcript, console))


def _body(transcript: Transcript, console: Console) -> Table:
    left = max(console.width - _FIXED - _TOKEN, _LEFT)
    token = max(min(_TOKEN, console.width - _FIXED - left), 1)
    body = Table(box=None, padding=(0, 1), expand=False, header_style="dim")
    body.add_column("answer", width=left, no_wrap=True)
    widths = (_NUMBER, _REGRET, token, _P, _P_SAID)
    for heading, width in zip(_headings(transcript), widths, strict=True):
        body.add_column(heading, width=width, no_wrap=True, overflow="ellipsis")
    waiting = {relaxation.number: relaxation for relaxation in transcript.relaxations}
    for line in _text(transcript, console).wrap(console, left):
        numbers = [number for number in _numbers(line) if number in waiting]
        notes = [_note(waiting.pop(number), transcript) for number in numbers]
        body.add_row(line, *(notes[0] if notes else ()))
        for note in notes[1:]:
            body.add_row(Text(), *note)
    return body


def _headings(transcript: Transcript) -> tuple[str, str, str, str, str]:
    return "", "regret", transcript.other, "p", "p kept" if transcript.other == "target" else "p said"


def _text(transcript: Transcript, console: Console) -> Text:
    text = Text()
    exhausted = transcript.report.get("exhausted_at_token")
    for position, piece in enumerate(transcript.pieces):
        if position == exhausted:
            text.append(_REFUSED, style="red")
        if piece.relaxation is None:
            text.append(piece.text)
            continue
        before, core, after = split_core(piece.text)
        text.append(before).append(_mark(core, piece.relaxation, transcript, console)).append(after)
    return text


def _mark(core: str, relaxation: Relaxation, transcript: Transcript, console: Console) -> Text:
    # The number travels with the style, so that it is still there after wrapping.
    style = Style(
        color="black",
        bgcolor=_COLOURS[transcript.level(relaxation)],
        underline=True,
        meta={"number": relaxation.number},
    )
    # Written to a file or a pipe, nothing is underlined.
    shown = f"[{core}]" if console.color_system is None else core
    return Text().append(shown + _superscript(relaxation), style=style)


def _superscript(relaxation: Relaxation) -> str:
    return str(relaxation.number).translate(_SUPERSCRIPT)


def _numbers(line: Text) -> list[int]:
    styles = [span.style for span in line.spans if isinstance(span.style, Style)]
    return [style.meta["number"] for style in styles if "number" in style.meta]


def _note(relaxation: Relaxation, transcript: Transcript) -> tuple[Text, ...]:
    level = transcript.level(relaxation)
    regret = Text(
        f"{_BARS[level]} {relaxation.regret:.2f}", style=Style(color="black", bgcolor=_COLOURS[level])
    )
    return (
        Text(_superscript(relaxation), style="bold"),
        regret,
        Text(visible(relaxation.other_text)),
        Text(_percent(relaxation.other_logprob)),
        Text(_percent(relaxation.said_logprob)),
    )


def _percent(logprob: float | None) -> str:
    return "" if logprob is None else f"{math.exp(logprob):.0%}"


def _legend(transcript: Transcript, console: Console) -> Text:
    mark = "[marked]ⁿ" if console.color_system is None else "markedⁿ"
    _, _, other, _, said = _headings(transcript)
    legend = Text(style="dim")
    if transcript.relaxations:
        meaning = (
            "kept, though the target would have said another token"
            if other == "target"
            else "where the draft's token would have been kept"
        )
        legend.append(mark, style="underline").append(f" {meaning}\nregret 0 ")
        for bar, colour in zip(_BARS, _COLOURS, strict=True):
            legend.append(bar, style=Style(color="black", bgcolor=colour, dim=False))
        legend.append(f" {transcript.max_regret:.2f} nats\n")
        whose = "its own token" if other == "target" else "the draft's token"
        legend.append(f"p: the target's probability of {whose}; {said}: of the one in the text")
    else:
        legend.append("no exception: every token is what the target would have said")
    if transcript.report.get("exhausted_at_token") is not None:
        legend.append(f"\n{_REFUSED}", style="red").append(" before the first token that the budget refused")
    return legend
