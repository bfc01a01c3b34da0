"""An account book in plain Python of committed tokens only: no tensors, nothing shared with the product.

A request is the list of what happened to it. What it has left, where it is in its text and whether its guard
has tripped are worked out anew from that list, so that a step taken back is a line struck out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vllm_asd.config import RequestLimits

THINK, END = 6, 7
PERIODS = WINDOW = 64


def single(value: float) -> float:
    """Round as a logit is."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


@dataclass(frozen=True)
class Row:
    """One request's part in a step: target, draft and gap per position, and the token that follows."""

    drafts: Sequence[tuple[int, int, float]]
    bonus: int
    discarded: bool = False


@dataclass(frozen=True)
class Chunk:
    """A request begins, or its session goes on: the prompt's last marker, and the limits from here on."""

    limits: RequestLimits
    thinking: bool


@dataclass(frozen=True)
class Step:
    """What one step did: kept exceptions by position, and the tokens it gave."""

    number: int
    exceptions: dict[int, float]
    accepted: int
    emitted: list[int]
    shadow: bool

    def cut(self, kept: int) -> Step:
        """Its first tokens alone. Under shadow the block's tail was never emitted, and counts whole."""
        exceptions = {p: r for p, r in self.exceptions.items() if self.shadow or p < kept}
        accepted = self.accepted if self.shadow else min(self.accepted, kept)
        return replace(self, exceptions=exceptions, accepted=accepted, emitted=self.emitted[:kept])


@dataclass
class Pool:
    """One account."""

    limits: RequestLimits
    remaining: float
    granted: float = 0.0

    def amend(self, limits: RequestLimits) -> None:
        """Other limits; what was spent stays spent."""
        spent = self.limits.budget + self.granted - self.remaining
        self.remaining = max(0.0, limits.budget - spent)
        self.granted = spent - limits.budget + self.remaining
        self.limits = limits

    def settle(self, charged: float, tokens: int) -> None:
        """Pay, then refill."""
        paid = max(0.0, self.remaining - charged)
        self.remaining = min(self.limits.budget, paid + self.limits.refill * tokens)
        self.granted += self.remaining - paid


@dataclass
class Guard:
    """All that a guarded request said since it was."""

    tokens: list[int] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    tripped: bool = False

    def add(self, tokens: Sequence[int], flags: Sequence[bool]) -> None:
        """One block; conditions are looked at when it is complete."""
        self.tokens += tokens
        self.flags += flags
        self.tripped = self.tripped or self._loops() or sum(self.flags[-WINDOW:]) > 12

    def _loops(self) -> bool:
        return any(run + p >= max(3 * p, 24) for p, run in enumerate(self.runs(), start=1))

    def runs(self) -> list[int]:
        """For periods 1, 2, ...: how many of the last tokens equal the one that many places before."""
        runs = []
        for period in range(1, PERIODS + 1):
            run = 0
            while run + period < len(self.tokens) and self.tokens[-1 - run] == self.tokens[-1 - run - period]:
                run += 1
            runs.append(run)
        return runs

    @property
    def row(self) -> list[float]:
        """As the product keeps it: the latch, the last tokens as id plus one, the runs, the last flags."""
        recent = [0.0] * PERIODS + [token + 1.0 for token in self.tokens]
        flags = [0.0] * WINDOW + [float(flag) for flag in self.flags]
        runs = [float(run) for run in reversed(self.runs())]
        return [float(self.tripped), *recent[-PERIODS:], *runs, *flags[-WINDOW:]]


class Request:
    """One request in one scope: "all", "reasoning" or "phases"."""

    def __init__(self, scope: str, chunk: Chunk) -> None:
        """Begin with a first chunk."""
        self.scope = scope
        self.lines: list[Chunk | Step] = [chunk]
        self._read()

    def begin_chunk(self, chunk: Chunk) -> None:
        """The session goes on."""
        self.lines.append(chunk)
        self._read()

    def add(self, step: Step) -> None:
        """A step was run; whether its tokens are kept is known later."""
        self.lines.append(step)
        self._read()

    def strike_out(self, after_step: int, kept: int | None) -> None:
        """Nothing was kept after a step, and of that step the first tokens."""
        lines: list[Chunk | Step] = []
        for line in self.lines:
            if isinstance(line, Chunk) or line.number < after_step:
                lines.append(line)
            elif line.number == after_step and kept != 0:
                lines.append(line if kept is None else line.cut(kept))
        self.lines = lines
        self._read()

    @property
    def limits(self) -> RequestLimits:
        """In force now."""
        return next(line for line in reversed(self.lines) if isinstance(line, Chunk)).limits

    @property
    def num_tokens(self) -> int:
        """Committed so far."""
        return sum(len(line.emitted) for line in self.lines if isinstance(line, Step))

    @property
    def was_amended(self) -> bool:
        """Whether a later chunk brought other limits."""
        return len({line.limits for line in self.lines if isinstance(line, Chunk)}) > 1

    def _read(self) -> None:
        self.pools: dict[bool, Pool] = {}
        self.thinking = False
        self.guard: Guard | None = None
        self._last_limits: RequestLimits | None = None
        for line in self.lines:
            if isinstance(line, Chunk):
                self._read_chunk(line)
            else:
                self._read_step(line)

    def _read_chunk(self, chunk: Chunk) -> None:
        limits = chunk.limits
        for phase, given in ((True, limits), (False, limits.answer or limits)):
            if phase not in self.pools:
                self.pools[phase] = Pool(given, given.budget)
            elif limits != self._last_limits:
                self.pools[phase].amend(given)
        self._last_limits = limits
        self.thinking = self.scope != "all" and chunk.thinking
        if not limits.guard:
            self.guard = None
        elif self.guard is None:
            self.guard = Guard()

    def _read_step(self, step: Step) -> None:
        self.pool.settle(sum(step.exceptions.values()), len(step.emitted))
        if self.guard is not None:
            places = step.accepted + 1 if step.shadow and step.emitted else len(step.emitted)
            self.guard.add(step.emitted, [place in step.exceptions for place in range(places)])
        for token in step.emitted:
            if self.scope != "all" and token in (THINK, END):
                self.thinking = token == THINK

    @property
    def pool(self) -> Pool:
        """That pays now; in other scopes than "phases" the one there is."""
        return self.pools[self.thinking or self.scope != "phases"]

    def decide(self, number: int, row: Row) -> Step:
        """Walk one block under what the request has left now."""
        pool = self.pool
        strict = pool.remaining <= 0 or (self.guard is not None and self.guard.tripped)
        exceptions: dict[int, float] = {}
        charged, accepted, thinking, strict_accepted = 0.0, 0, self.thinking, 0
        seen_marker = False
        for place, (target, draft, gap) in enumerate(row.drafts):
            is_marker = self.scope != "all" and draft in (THINK, END)
            seen_marker = seen_marker or is_marker
            if draft != target:
                price = single(gap) / (len(row.drafts) - place)
                in_scope = {"all": True, "reasoning": thinking and not is_marker, "phases": not seen_marker}
                protected = self.scope != "all" and {draft, target} & {THINK, END}
                if strict or protected or not in_scope[self.scope] or price > pool.limits.gate:
                    break
                if len(exceptions) >= pool.limits.block_cap or charged + single(gap) > pool.remaining:
                    break
                charged += single(gap)
                exceptions[place] = single(gap)
            strict_accepted += not exceptions
            accepted += 1
            if is_marker:
                thinking = draft == THINK
        reach = strict_accepted if pool.limits.shadow else accepted
        following = row.bonus if reach == len(row.drafts) else row.drafts[reach][0]
        emitted = [*(draft for _, draft, _ in row.drafts[:reach]), following]
        return Step(number, exceptions, accepted, [] if row.discarded else emitted, pool.limits.shadow)
