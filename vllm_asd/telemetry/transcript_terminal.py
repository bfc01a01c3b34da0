"""A transcript on the terminal: the text on the left, what the target would have said on the right."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from vllm_asd.telemetry.transcript import Relaxation, Transcript, split_core, visible

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# From cheap to dear, dark text on all of them.
_COLOURS = ("#fff3b0", "#ffd97d", "#ffb45e", "#ff8c5a", "#ff6b6b")
_SIDE_WIDTH = 44


def render(transcript: Transcript, console: Console) -> RenderableType:
    """Lay the transcript out for a console of its width."""
    summary = Table.grid(padding=(0, 2))
    for label, value in transcript.summary():
        summary.add_row(Text(label, style="dim"), value)
    left = max(console.width - _SIDE_WIDTH - 3, 20)
    body = Table(box=None, show_header=False, padding=(0, 1), expand=False)
    body.add_column(width=left, no_wrap=True)
    body.add_column(width=_SIDE_WIDTH, no_wrap=True, overflow="ellipsis")
    by_number = {relaxation.number: relaxation for relaxation in transcript.relaxations}
    shown: set[int] = set()
    for line in _text(transcript).wrap(console, left):
        numbers = [number for number in _numbers(line) if number not in shown]
        shown.update(numbers)
        notes = [_note(by_number[number], transcript) for number in numbers] or [Text()]
        body.add_row(line, notes[0])
        for note in notes[1:]:
            body.add_row(Text(), note)
    return Group(summary, Text(), body, Text(), _legend(transcript))


def _text(transcript: Transcript) -> Text:
    text = Text()
    exhausted = transcript.report.get("exhausted_at_token")
    for position, piece in enumerate(transcript.pieces):
        if position == exhausted:
            text.append("▏", style="red")
        if piece.relaxation is None:
            text.append(piece.text)
            continue
        number = piece.relaxation.number
        # The number travels with the style, so that it is still there after wrapping.
        style = Style(
            color="black",
            bgcolor=_colour(piece.relaxation, transcript),
            underline=True,
            meta={"number": number},
        )
        before, core, after = split_core(piece.text)
        text.append(before).append(core + str(number).translate(_SUPERSCRIPT), style=style).append(after)
    return text


def _numbers(line: Text) -> list[int]:
    styles = [span.style for span in line.spans if isinstance(span.style, Style)]
    return [style.meta["number"] for style in styles if "number" in style.meta]


def _note(relaxation: Relaxation, transcript: Transcript) -> Text:
    number = str(relaxation.number).translate(_SUPERSCRIPT)
    note = Text(f"{number} ", style="bold")
    note.append(
        f"{relaxation.regret:.2f}", style=Style(color="black", bgcolor=_colour(relaxation, transcript))
    )
    note.append(f" {transcript.other}: {visible(relaxation.other_text)}", style="not bold")
    if relaxation.target_logprob is not None and relaxation.logprob is not None:
        note.append(
            f"  {_percent(relaxation.target_logprob)} against {_percent(relaxation.logprob)}", style="dim"
        )
    return note


def _percent(logprob: float) -> str:
    return f"{2.718281828459045**logprob:.0%}"


def _colour(relaxation: Relaxation, transcript: Transcript) -> str:
    share = relaxation.regret / transcript.max_regret if transcript.max_regret else 0.0
    return _COLOURS[min(int(share * len(_COLOURS)), len(_COLOURS) - 1)]


def _legend(transcript: Transcript) -> Text:
    legend = Text("regret 0 ", style="dim")
    for colour in _COLOURS:
        legend.append("  ", style=Style(bgcolor=colour))
    legend.append(f" {transcript.max_regret:.2f} nats", style="dim")
    if transcript.report.get("exhausted_at_token") is not None:
        legend.append("   ▏", style="red")
        legend.append(" first token that the budget refused", style="dim")
    return legend
