"""What the demo prints: plain lines that read the same on a terminal and in a file, with colour on top."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from vllm_asd.tools.demo.client import Answer, TokenText
from vllm_asd.tools.demo.prompts import Prompt

_WIDTH_WITHOUT_TERMINAL = 100
_KEPT = "bold black on yellow"
_TARGET = "yellow"
_VISIBLE = str.maketrans({"\n": "\u21b5", "\t": "\u21e5"})


@dataclass(frozen=True)
class Pair:
    """The same request, strict and with ASD."""

    prompt: Prompt
    strict: Answer
    asd: Answer


@dataclass(frozen=True)
class Series:
    """All requests with one drafter."""

    drafter: str
    pairs: Sequence[Pair]


def make_console() -> Console:
    """A console as wide as the terminal, or wide enough for the tables where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)


def show_pair(console: Console, pair: Pair, text: TokenText) -> None:
    """Print one request: what it took both ways, where the texts part, and the text with its exceptions."""
    console.print()
    console.print(Rule(f"{pair.prompt.title} ({pair.prompt.route})", align="left", characters="-"))
    console.print(Text(f"prompt: {_shortened(pair.prompt.text)}", style="dim"))
    console.print(_measures(pair))
    console.print(parting(pair))
    strict = "".join(text.pieces(pair.strict.token_ids))
    if pair.asd.token_ids == pair.strict.token_ids:
        console.print(Text("both: ", style="bold"), Text(strict.strip()), sep="")
        return
    console.print(Text("strict: ", style="bold"), Text(strict.strip()), sep="")
    console.print(Text("asd:    ", style="bold"), marked_text(pair.asd, text), sep="")


def _measures(pair: Pair) -> Table:
    table = Table(box=None, pad_edge=False)
    columns = ("", "tokens", "rounds", "with drafts", "tokens/round", "exceptions", "regret spent")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for name, answer in (("strict", pair.strict), ("asd", pair.asd)):
        table.add_row(
            name,
            str(len(answer.token_ids)),
            str(answer.rounds),
            str(answer.verifications),
            f"{answer.tokens_per_round:.2f}",
            str(len(answer.exceptions)),
            f"{answer.spent:.2f} of {answer.budget:g}" if answer.budget else "-",
        )
    return table


def parting(pair: Pair) -> str:
    """One sentence on where the two answers part, and whether an exception did it."""
    strict, asd = pair.strict.token_ids, pair.asd.token_ids
    if strict == asd:
        return "The texts are the same."
    same = next(
        (i for i, (one, other) in enumerate(zip(strict, asd, strict=False)) if one != other),
        min(len(strict), len(asd)),
    )
    if any(kept.position == same for kept in pair.asd.exceptions):
        return f"The texts part after {same} tokens, at the first exception."
    # bf16 logits depend on the shape of the batch, and a verification block is one.
    return f"The texts part after {same} tokens, where there is no exception: bf16 rounding decided a tie."


def marked_text(answer: Answer, text: TokenText) -> Text:
    """The answer, each exception as `\u00abkept|what the target would have said\u00bb`."""
    target_ids = {kept.position: kept.target_id for kept in answer.exceptions}
    marked = Text()
    for position, piece in enumerate(text.pieces(answer.token_ids)):
        if position not in target_ids:
            marked.append(piece if marked else piece.lstrip())
            continue
        instead = text.replaced(answer.token_ids, position, target_ids[position])
        marked.append("\u00ab").append(piece.translate(_VISIBLE), style=_KEPT)
        marked.append("|").append(instead.translate(_VISIBLE), style=_TARGET).append("\u00bb")
    return marked


def show_summary(console: Console, all_series: Sequence[Series]) -> None:
    """Print the totals per drafter."""
    console.print()
    table = Table(title="Summary, strict / ASD", title_justify="left", box=None, pad_edge=False)
    table.add_column("drafter")
    for column in ("tokens", "rounds", "tokens/round", "ratio", "exceptions/100", "regret/request"):
        table.add_column(column, justify="right")
    for series in all_series:
        strict = Totals([pair.strict for pair in series.pairs])
        asd = Totals([pair.asd for pair in series.pairs])
        table.add_row(
            series.drafter,
            f"{strict.tokens} / {asd.tokens}",
            f"{strict.rounds} / {asd.rounds}",
            f"{strict.tokens_per_round:.2f} / {asd.tokens_per_round:.2f}",
            f"{asd.tokens_per_round / strict.tokens_per_round:.2f}",
            f"{100 * asd.exceptions / asd.tokens:.1f}",
            f"{asd.spent / len(series.pairs):.2f}",
        )
    console.print(table)


class Totals:
    """Several answers together."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        """Add them up."""
        self.tokens = sum(len(answer.token_ids) for answer in answers)
        self.rounds = sum(answer.rounds for answer in answers)
        self.exceptions = sum(len(answer.exceptions) for answer in answers)
        self.spent = sum(answer.spent for answer in answers)
        # As for one answer: the first token of each comes from its prompt's pass.
        self.tokens_per_round = (self.tokens - len(answers)) / max(self.rounds, 1)


def _shortened(text: str, length: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3] + "..."
