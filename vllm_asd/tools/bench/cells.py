"""The order of a run: which server, which arm, how often, in what sequence."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from vllm_asd.tools.bench.settings import Settings

Work = Literal["fixed", "natural", "trace"]
NONE, FLY = "none", "fly"
STRICT, ASD, SHADOW = "strict", "asd", "shadow"

# What each arm's requests carry on top; the server is the same.
EXTRA_BODY: dict[str, dict[str, Any]] = {
    STRICT: {"vllm_xargs": {"asd_budget": 0}},
    ASD: {},
    SHADOW: {"vllm_xargs": {"asd_mode": "shadow"}},
    NONE: {},
    FLY: {},
}


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement, one file.

    Attributes:
        server: "none", a drafter's label, or that label with "-fly".
        arm: Key of :data:`EXTRA_BODY`.
        concurrency: Requests at a time; for a trace, the server's limit.
        work: Equal output lengths, natural ends, or a replayed trace.
        repeat: Counted from 0.
    """

    server: str
    arm: str
    concurrency: int
    work: Work
    repeat: int

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return f"{self.server}.{self.arm}.c{self.concurrency}.{self.work}.{self.repeat}"


@dataclass(frozen=True)
class Visit:
    """One start of one server and what is measured while it is up."""

    server: str
    cells: tuple[Cell, ...]


def plan_visits(settings: Settings, fly: Collection[str] = ()) -> list[Visit]:
    """Plan the whole run.

    The plain server is visited before and after the others, so that a drift of the machine shows.

    Args:
        settings: Of the run.
        fly: Labels of the drafters that vLLM's own lossy method can be measured with.
    """
    early = (settings.repeats + 1) // 2
    visits = [Visit(NONE, tuple(_plain(settings, range(early), extras=True)))]
    for speculation in settings.speculations:
        visits.append(Visit(speculation.label, tuple(_compared(settings, speculation.label))))
        if speculation.label in fly:
            server = f"{speculation.label}-{FLY}"
            repeats = range(settings.repeats)
            cells = tuple(Cell(server, FLY, c, "fixed", r) for c in settings.concurrency for r in repeats)
            visits.append(Visit(server, cells))
    if early < settings.repeats:
        late = range(early, settings.repeats)
        visits.append(Visit(NONE, tuple(_plain(settings, late, extras=False))))
    return visits


def _plain(settings: Settings, repeats: range, *, extras: bool) -> Iterator[Cell]:
    for concurrency in settings.concurrency:
        for repeat in repeats:
            yield Cell(NONE, NONE, concurrency, "fixed", repeat)
    for work in _extra_works(settings) if extras else ():
        yield Cell(NONE, NONE, settings.concurrency[-1], work, 0)


def _compared(settings: Settings, server: str) -> Iterator[Cell]:
    """Strict, then ASD and shadow in turning order, then strict again, and so on."""
    for concurrency in settings.concurrency:
        yield Cell(server, STRICT, concurrency, "fixed", 0)
        for repeat in range(settings.repeats):
            pair = (ASD, SHADOW) if repeat % 2 == 0 else (SHADOW, ASD)
            for arm in pair:
                yield Cell(server, arm, concurrency, "fixed", repeat)
            yield Cell(server, STRICT, concurrency, "fixed", repeat + 1)
    for work in _extra_works(settings):
        for arm, repeat in ((STRICT, 0), (ASD, 0), (STRICT, 1)):
            yield Cell(server, arm, settings.concurrency[-1], work, repeat)


def _extra_works(settings: Settings) -> tuple[Work, ...]:
    works: tuple[Work, ...] = ("natural",) if settings.natural else ()
    return (*works, "trace") if settings.trace else works
