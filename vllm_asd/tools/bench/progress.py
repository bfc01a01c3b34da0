"""Say how far a run is: a bar on a terminal, and in either case a line per finished cell."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from vllm_asd.tools.bench.cells import Cell
from vllm_asd.tools.bench.settings import Settings


class RunProgress:
    """Counts cells, and guesses what the others will take."""

    def __init__(self, settings: Settings, todo: Collection[Cell], done: int) -> None:
        """Begin with `done` cells from an earlier run and `todo` to come."""
        self._console = Console(stderr=True, highlight=False)
        self._settings = settings
        self._todo = set(todo)
        self._total, self._done = done + len(todo), done
        self._tokens_per_s: dict[int, float] = {}
        self._bar: Progress | None = None
        if done:
            say(f"{done} of {self._total} cells are there already; going on")

    @contextmanager
    def visit(self, server: str) -> Iterator[None]:
        """Show a bar while one server is up; the server's own start shows its own."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as bar:
            self._task = bar.add_task(server, total=self._total, completed=self._done)
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def finished(self, cell: Cell, tokens: int, seconds: float) -> None:
        """Count one that gave so many output tokens in so many seconds, all told."""
        self._done += 1
        self._todo.discard(cell)
        self._tokens_per_s[cell.concurrency] = tokens / seconds
        left = f"about {self.left_s / 60:.0f} min left"
        count = f"{self._done}/{self._total}"
        self._console.print(f"{count}  {cell.name:32} {seconds:5.0f} s   {left}", soft_wrap=True)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    @property
    def left_s(self) -> float:
        """Seconds for the rest, server starts aside, at the speed last seen at that concurrency."""
        fastest = max(self._tokens_per_s.values())
        return sum(
            self._settings.requests_at(cell.concurrency)
            * self._settings.max_tokens
            / self._tokens_per_s.get(cell.concurrency, fastest)
            for cell in self._todo
        )


def say(text: str) -> None:
    """Say something to whoever waits."""
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)
