"""Charged only for what was committed: the verifier under a scheduler that throws steps away, against a book.

Everything on the CPU agrees bit for bit: a charge that is cut is summed again in the order of its tokens, as
the decision summed it. On a GPU the sum of a cut block is a parallel scan, which may round otherwise in its
last bit; nothing else is summed.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.commit_book import END, THINK, Chunk, Request, Row, Step
from vllm_asd.batch import Emitted
from vllm_asd.config import AsdConfig, RequestLimits, Scope
from vllm_asd.kernels import DraftBlocks
from vllm_asd.phase import ThinkMarkers
from vllm_asd.upstream.commit import ATTRIBUTE, Notice, Rollback
from vllm_asd.upstream.scheduled import follow_schedule
from vllm_asd.verification import DraftShape, Verifier

torch.set_num_threads(1)

VOCAB, WIDTH = 8, 4
MARKERS = ThinkMarkers(THINK, END)
IDS = ["a", "b", "c", "d"]
# Of three bits and of many: sums of the latter round.
GAPS = [0.125, 0.25, 0.1, 1 / 3, 0.7]


@dataclass
class InFlight:
    """A step whose output the scheduler has not looked at yet: the tokens it gave, by request."""

    number: int
    given: dict[str, list[int]]
    dropped: set[str] = field(default_factory=set)


class Engine:
    """A scheduler and a worker, without vLLM: what a step gave is looked at some steps later."""

    def __init__(self, rng: random.Random, scope: Scope, refill: bool, guards: bool, v2: bool) -> None:
        self.rng, self.refill, self.guards, self.v2 = rng, refill, guards, v2
        keys = {"asd_gate": 4.0, "asd_block_cap": 4, "asd_budget": 4.0, "asd_refill": 0.5 * refill}
        config = AsdConfig.from_keys({**keys, "asd_scope": scope, "asd_guard": "on" if guards else "off"})
        self.verifier = Verifier(config, torch.device("cpu"), 1, DraftShape(WIDTH, VOCAB), MARKERS)
        self.book: dict[str, Request] = {}
        self.prompts: dict[str, list[int]] = {}
        self.stuck = rng.random() < 0.5
        self.step, self.committed = 0, 0
        self.in_flight: deque[InFlight] = deque()
        self.rollbacks: dict[str, Rollback] = {}

    def limits(self) -> RequestLimits:
        """What a request may ask for; some are lax for long, so that guards have something to see."""

        def one() -> dict[str, Any]:
            return {
                "budget": self.rng.choice([0.0, 0.3, 1.0, 4.0, 1e3, 1e3, 1e3]),
                "gate": self.rng.choice([0.125, 0.5, 4.0, 4.0]),
                "block_cap": self.rng.choice([1, 2, 4, 4]),
                "refill": self.rng.choice([0.0, 0.01, 0.1, 0.5]) if self.refill else 0.0,
            }

        shadow = self.rng.random() < 0.2
        phases = self.verifier.config.asd_scope == "phases"
        answer = RequestLimits(**one(), shadow=shadow) if phases else None
        guard = self.guards and self.rng.random() < 0.7
        return RequestLimits(**one(), shadow=shadow, answer=answer, guard=guard)

    def row(self) -> Row:
        """Drafts that the target likes more or less; none in a step without."""
        rng = self.rng
        # Stuck answers loop, with exceptions or without; the others hold every token.
        tokens = [0, 0, 1, 2, 3, THINK, END]
        if self.stuck:
            tokens = [0] if rng.random() < 0.9 else [0, 1]
        match = rng.choice([0.2, 0.8, 1.0])
        drafts = []
        for _ in range(rng.choice([0, 1, 3, WIDTH, WIDTH])):
            target = rng.choice(tokens)
            draft = target if rng.random() < match else rng.choice([1, *tokens])
            drafts.append((target, draft, rng.choice(GAPS)))
        return Row(drafts, rng.choice(tokens), discarded=rng.random() < 0.1)

    def look_at_output(self) -> list[str]:
        """Process what the oldest step gave; returns the requests that end their chunk with it."""
        output = self.in_flight.popleft()
        self.committed = output.number
        stopped = []
        for request_id, tokens in output.given.items():
            if request_id not in self.book or request_id in output.dropped:
                continue
            kept = len(tokens)
            if tokens and self.rng.random() < 0.25:
                kept = self.rng.randrange(len(tokens) + 1)
                stopped.append(request_id)
            if kept < len(tokens) or (stopped and stopped[-1] == request_id and self._flies(request_id)):
                self.take_back(request_id, Rollback(output.number, kept))
        return stopped

    def _flies(self, request_id: str) -> bool:
        return any(request_id in step.given and request_id not in step.dropped for step in self.in_flight)

    def take_back(self, request_id: str, rollback: Rollback) -> None:
        """Say with the next schedule that nothing later was kept."""
        for step in self.in_flight:
            if step.number > rollback.after_step:
                step.dropped.add(request_id)
        self.book[request_id].strike_out(rollback.after_step, rollback.kept_tokens)
        known = self.rollbacks.get(request_id)
        if known is None or (rollback.after_step, rollback.kept_tokens or 0) < (
            known.after_step,
            known.kept_tokens or 0,
        ):
            self.rollbacks[request_id] = rollback

    def schedule(self, finished: Sequence[str], new: Sequence[str]) -> None:
        """Tell the worker: what was not kept, who is gone, who is new or goes on."""
        self.step += 1
        rollbacks, self.rollbacks = self.rollbacks, {}
        for request_id in finished:
            rollbacks.pop(request_id, None)
            self._end(request_id)
        requests = []
        for request_id in new:
            limits = self.book[request_id].limits if request_id in self.book else self.limits()
            if request_id in self.book and self.rng.random() < 0.5:
                limits = self.limits()
            requests.append(self._begin(request_id, limits))
        notice = Notice(self.step, self.committed, rollbacks)
        output = SimpleNamespace(finished_req_ids=set(finished), scheduled_new_reqs=requests)
        setattr(output, ATTRIBUTE, notice)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vllm_asd.upstream.scheduled.limits_of", lambda _, params: params.limits)
            follow_schedule(self.verifier, output)

    def _end(self, request_id: str) -> None:
        self.book.pop(request_id, None)
        self.prompts.pop(request_id, None)
        for step in self.in_flight:
            step.given.pop(request_id, None)

    def _begin(self, request_id: str, limits: RequestLimits) -> Any:
        thinking = self.rng.random() < 0.5
        prompt = [*self.prompts.get(request_id, [1]), THINK if thinking else END]
        chunk = Chunk(limits, thinking)
        if request_id in self.book:
            self.book[request_id].begin_chunk(chunk)
        elif not limits.is_strict:
            self.book[request_id] = Request(self.verifier.config.asd_scope, chunk)
        if request_id in self.book:
            self.prompts[request_id] = prompt
        params = SimpleNamespace(temperature=0.0, stop_token_ids=(), eos_token_id=None, limits=limits)
        return SimpleNamespace(req_id=request_id, sampling_params=params, prompt_token_ids=prompt)

    def resume(self, request_id: str) -> None:
        """Preempted: its steps in flight are dropped, and it comes back as it was."""
        if self._flies(request_id):
            self.take_back(request_id, Rollback(self.committed, None))

    def run(self, batch: list[str]) -> None:
        """Run the step that was scheduled, both in the worker and in the book."""
        rows = {request_id: self.row() for request_id in batch}
        if self.rng.random() < 0.2:
            rows = {request_id: Row([], row.bonus, row.discarded) for request_id, row in rows.items()}
        expected: dict[str, Step] = {}
        for request_id, row in rows.items():
            if request_id in self.book:
                expected[request_id] = self.book[request_id].decide(self.step, row)
                self.book[request_id].add(expected[request_id])
        given = run_worker(self.verifier, rows, self.v2)
        for request_id, step in expected.items():
            assert given[request_id] == step.emitted
        known = {request_id: tokens for request_id, tokens in given.items() if request_id in self.book}
        self.in_flight.append(InFlight(self.step, known))

    def compare(self) -> None:
        """Every account, phase and guard is the book's."""
        verifier = self.verifier
        entries = verifier.ledger.snapshot()
        assert {key for key in entries if isinstance(key, str)} == set(self.book)
        phases = verifier.config.asd_scope == "phases"
        for request_id, request in self.book.items():
            for thinking, pool in request.pools.items():
                if not thinking and not phases:
                    continue
                entry = entries[request_id if thinking else (request_id, "answer")]
                assert (entry.remaining, entry.granted) == (pool.remaining, pool.granted)
                assert pool.remaining >= 0
                if not request.was_amended:
                    assert entry.spent <= pool.limits.budget + entry.granted
                    assert entry.granted <= pool.limits.refill * request.num_tokens * (1 + 1e-12)
            if verifier.config.asd_scope != "all":
                phase = verifier._accounts._phases
                assert phase.thinking(phase.slots([request_id])).item() == request.thinking
            guards = verifier._guards
            assert (request_id in guards) == (request.guard is not None)
            if request.guard is not None:
                assert guards.rows(guards.slots([request_id]))[0].tolist() == request.guard.row
        for table in (verifier.ledger, verifier._guards, verifier._accounts._phases):
            assert not table._state[0].any()
        assert len(verifier._log) <= self.step - self.committed


def run_worker(verifier: Verifier, rows: dict[str, Row], v2: bool) -> dict[str, list[int]]:
    """Drive the verifier as a runner does, with all that a runner leaves lying about; what each row gave."""
    flat = [position for row in rows.values() for position in row.drafts]
    lengths = [len(row.drafts) for row in rows.values()]
    verifier.begin(list(rows))
    drafts = torch.tensor([draft for _, draft, _ in flat], dtype=torch.int32)
    argmax = torch.tensor([target for target, _, _ in flat], dtype=torch.int64)
    if flat:
        logits = torch.full((len(flat), VOCAB), -50.0)
        for index, (target, draft, gap) in enumerate(flat):
            logits[index, draft] = -gap
            logits[index, target] = 0.0
        cu = torch.tensor(lengths).cumsum(0).to(torch.int32)
        verifier.relax(DraftBlocks(logits, argmax, drafts, cu, max(lengths)))
    width = (WIDTH if v2 else max(lengths)) + 1
    emitted = torch.empty(len(rows), width, dtype=torch.int64) if v2 else torch.full((len(rows), width), -1)
    counts, start = torch.zeros(len(rows), dtype=torch.int32), 0
    for index, row in enumerate(rows.values()):
        tokens = []
        for place in range(start, start + len(row.drafts)):
            tokens.append(int(argmax[place]))
            if argmax[place] != drafts[place]:
                break
        else:
            tokens.append(row.bonus)
        emitted[index, : len(tokens)] = torch.tensor(tokens)
        counts[index] = 0 if row.discarded and v2 else len(tokens)
        start += len(row.drafts)
    discarded = torch.tensor([row.discarded for row in rows.values()])
    verifier.finish(Emitted(emitted, counts) if v2 else Emitted(emitted, discarded=discarded))
    # V1 fills the same buffer again in the next step.
    discarded.fill_(True)
    return {
        request_id: [] if row.discarded else emitted[index, : counts[index]].tolist()
        for index, (request_id, row) in enumerate(rows.items())
    }


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    scope=st.sampled_from(["all", "reasoning", "phases"]),
    refill=st.booleans(),
    guards=st.booleans(),
    v2=st.booleans(),
    delay=st.integers(1, 3),
)
def test_state_is_that_of_the_committed_tokens(
    seed: int, scope: Scope, refill: bool, guards: bool, v2: bool, delay: int
) -> None:
    """Dropped and cut steps in flight, several times over, ids used again, sessions, batches in any order."""
    rng = random.Random(seed)
    engine = Engine(rng, scope, refill, guards, v2)
    for _ in range(40):
        new: list[str] = []
        while len(engine.in_flight) > (delay if rng.random() < 0.7 else 0):
            new += [i for i in engine.look_at_output() if rng.random() < 0.7 and i not in new]
        for request_id in engine.book:
            if rng.random() < 0.05 and request_id not in new:
                engine.resume(request_id)
        finished = [i for i in engine.book if rng.random() < 0.03]
        # An id is used again at once, or a new one comes.
        new = [i for i in new if i not in finished]
        new += [i for i in IDS if (i in finished or i not in engine.book) and rng.random() < 0.3]
        engine.schedule(finished, new)
        if rng.random() < 0.7:
            engine.compare()
        batch = rng.sample([*IDS, "stranger"], rng.randint(1, 5))
        engine.run(batch)
    engine.schedule([], [])
    engine.compare()


def test_without_notices_nothing_is_remembered() -> None:
    """A scheduler that is not ours says nothing; the log would grow for ever."""
    verifier = Verifier(AsdConfig(), torch.device("cpu"), 1, DraftShape(WIDTH, VOCAB))
    verifier.admit("a", verifier.config.limits)
    for _ in range(3):
        run_worker(verifier, {"a": Row([(0, 1, 0.25)], 0)}, v2=True)
    assert len(verifier._log) == 0
    verifier.roll_back("a", 0, None)
    assert verifier.ledger.spent("a") == 0.75


def test_a_rollback_does_not_reach_back_over_a_chunk() -> None:
    """Its limits were counted from what was spent by then, and its guard's place may be another's by now."""
    config = AsdConfig(asd_budget=4.0, asd_gate=4.0, asd_guard="on")
    verifier = Verifier(config, torch.device("cpu"), 1, DraftShape(WIDTH, VOCAB))
    block = Row([(0, 1, 0.25), (0, 1, 0.25)], 0)
    verifier.start_step(1, 0)
    verifier.admit("a", config.limits)
    run_worker(verifier, {"a": block}, v2=True)
    verifier.start_step(2, 0)
    verifier.admit("a", RequestLimits(budget=2.0, gate=4.0, block_cap=2))
    verifier.admit("b", config.limits)
    run_worker(verifier, {"b": block, "a": block}, v2=True)
    guards = verifier._guards.rows(verifier._guards.slots(["b"]))
    verifier.roll_back("a", 0, None)
    assert verifier.ledger.spent("a") == verifier.ledger.spent("b") == 0.5
    assert torch.equal(verifier._guards.rows(verifier._guards.slots(["b"])), guards)
