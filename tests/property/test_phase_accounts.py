"""Scope "phases" over whole walks of requests, against an account book in plain Python."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read_blocks import by_request
from vllm_asd.batch import Emitted
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels import DraftBlocks
from vllm_asd.phase import ThinkMarkers
from vllm_asd.verification import DraftShape, Verifier

torch.set_num_threads(1)

VOCAB, THINK, END = 8, 6, 7
MARKERS = ThinkMarkers(THINK, END)
CONFIG = AsdConfig(asd_scope="phases", asd_budget=4.0, asd_gate=4.0, asd_block_cap=4, asd_refill=0.25)
IDS = ["a", "b", "c"]

# Everything is a multiple of 1/16, so that sums are exact and the two must agree to the last bit.
one_pool = st.builds(
    RequestLimits,
    budget=st.sampled_from([0.0, 0.25, 1.0, 4.0]),
    gate=st.sampled_from([0.125, 0.5, 4.0]),
    block_cap=st.integers(1, 3),
    refill=st.sampled_from([0.0, 0.0625, 0.25]),
)
limits_strategy = st.builds(
    lambda reasoning, answer: RequestLimits(
        reasoning.budget, reasoning.gate, reasoning.block_cap, reasoning.refill, answer=answer
    ),
    one_pool,
    one_pool,
)
tokens = st.sampled_from([0, 0, 1, 2, THINK, END])
# The target's token, the draft, and how far below the target the draft lies.
positions = st.tuples(tokens, tokens, st.sampled_from([0.125, 0.25, 0.5, 1.0]))


@dataclass(frozen=True)
class Row:
    """One request's part in a step: its drafts, the bonus token, and whether vLLM throws the tokens away."""

    drafts: list[tuple[int, int, float]]
    bonus: int
    discarded: bool


rows = st.builds(Row, st.lists(positions, max_size=4), tokens, st.sampled_from([False, False, False, True]))
events = st.one_of(
    st.tuples(st.just("step"), st.lists(rows, min_size=3, max_size=3), st.permutations(IDS)),
    st.tuples(st.just("step"), st.lists(rows, min_size=3, max_size=3), st.permutations(IDS)),
    st.tuples(st.just("admit"), st.sampled_from(IDS), limits_strategy, st.booleans()),
    st.tuples(st.just("resume"), st.sampled_from(IDS)),
    st.tuples(st.just("release"), st.sampled_from(IDS)),
)


@dataclass
class Pool:
    """One account."""

    limits: RequestLimits
    remaining: float
    granted: float = 0.0
    charged: float = 0.0
    tokens: int = 0
    amended: bool = False

    @property
    def spent(self) -> float:
        return self.limits.budget + self.granted - self.remaining

    def amend(self, limits: RequestLimits) -> None:
        spent = self.spent
        self.remaining = max(0.0, limits.budget - spent)
        self.granted = spent - limits.budget + self.remaining
        self.limits, self.amended = limits, True


@dataclass
class Request:
    """What the book holds of a request."""

    limits: RequestLimits
    prompt: list[int]
    thinking: bool = False
    pools: dict[bool, Pool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.thinking = is_open(self.prompt)
        for thinking, limits in self.by_phase(self.limits).items():
            self.pools[thinking] = Pool(limits, limits.budget)

    @staticmethod
    def by_phase(limits: RequestLimits) -> dict[bool, RequestLimits]:
        assert limits.answer is not None
        return {True: limits, False: limits.answer}


def is_open(prompt: list[int]) -> bool:
    """Whether a prompt's last marker opens the reasoning."""
    return [END, *(token for token in prompt if token in (THINK, END))][-1] == THINK


def decide(row: Row, pool: Pool | None) -> tuple[int, float, list[int]]:
    """Walk one block: accepted drafts, nats charged, tokens emitted."""
    accepted, charged, exceptions, behind_marker = 0, 0.0, 0, False
    for index, (target, draft, gap) in enumerate(row.drafts):
        if draft != target:
            if pool is None or behind_marker or {draft, target} & {THINK, END} or pool.remaining <= 0:
                break
            if gap / (len(row.drafts) - index) > pool.limits.gate or exceptions == pool.limits.block_cap:
                break
            if charged + gap > pool.remaining:
                break
            charged, exceptions = charged + gap, exceptions + 1
        behind_marker = behind_marker or draft in (THINK, END)
        accepted += 1
    kept = [draft for _, draft, _ in row.drafts[:accepted]]
    following = row.bonus if accepted == len(row.drafts) else row.drafts[accepted][0]
    return accepted, charged, [*kept, following]


def run_step(verifier: Verifier, batch: dict[str, Row]) -> dict[str, tuple[int, bool, float]]:
    """Drive the verifier as a runner does; accepted drafts, phase and spent of each reported row."""
    flat = [position for row in batch.values() for position in row.drafts]
    lengths = torch.tensor([len(row.drafts) for row in batch.values()])
    logits = torch.full((len(flat), VOCAB), -50.0)
    for index, (target, draft, gap) in enumerate(flat):
        logits[index, draft] = -gap
        logits[index, target] = 0.0
    argmax = torch.tensor([target for target, _, _ in flat], dtype=torch.int64)
    drafts = torch.tensor([draft for _, draft, _ in flat], dtype=torch.int32)
    active = verifier.begin(list(batch))
    width = int(lengths.max())
    if flat:
        verifier.relax(DraftBlocks(logits, argmax, drafts, lengths.cumsum(0).to(torch.int32), width))
    starts = [0, *lengths.cumsum(0).tolist()]
    emitted = torch.full((len(batch), width + 1), -1)
    for index, (row, (start, end)) in enumerate(zip(batch.values(), itertools.pairwise(starts), strict=True)):
        out = []
        for place in range(start, end):
            out.append(int(argmax[place]))
            if argmax[place] != drafts[place]:
                break
        else:
            out.append(row.bonus)
        emitted[index, : len(out)] = torch.tensor(out)
    discarded = torch.tensor([row.discarded for row in batch.values()])
    report = verifier.finish(Emitted(emitted, discarded=discarded))
    if not active or report is None:
        return {}
    blocks = by_request(report.resolve())
    return {i: (block.accepted, block.thinking == 1, block.spent) for i, block in blocks.items()}


def settle(request: Request, charged: float, emitted: list[int], discarded: bool) -> None:
    """Charge and refill the account of the phase in which the block began; then follow the phase."""
    pool = request.pools[request.thinking]
    kept = [] if discarded else emitted
    paid = max(0.0, pool.remaining - charged)
    pool.remaining = min(pool.limits.budget, paid + pool.limits.refill * len(kept))
    pool.granted += pool.remaining - paid
    pool.charged, pool.tokens = pool.charged + charged, pool.tokens + len(kept)
    for token in kept:
        if token in (THINK, END):
            request.thinking = token == THINK


@settings(max_examples=400, deadline=None)
@given(st.lists(events, min_size=4, max_size=24))
def test_two_pools_against_the_book(walk: list[tuple[Any, ...]]) -> None:
    """Admitted, amended, preempted, released, reused: every decision and every account is the book's."""
    verifier = Verifier(CONFIG, torch.device("cpu"), 1, DraftShape(4, VOCAB), MARKERS)
    book: dict[str, Request] = {}
    for kind, *event in [("admit", "a", CONFIG.limits, True), ("admit", "b", CONFIG.limits, False), *walk]:
        if kind == "admit":
            request_id, limits, thinking = event
            marker = THINK if thinking else END
            # A session's next chunk comes with all that was said before.
            prompt = [*(book[request_id].prompt if request_id in book else [1]), marker]
            verifier.admit(request_id, limits, prompt_ids=prompt)
            if request_id in book:
                book[request_id].prompt, book[request_id].thinking = prompt, thinking
                for phase, given_limits in Request.by_phase(limits).items():
                    if limits != book[request_id].limits:
                        book[request_id].pools[phase].amend(given_limits)
                book[request_id].limits = limits
            elif not limits.is_strict:
                book[request_id] = Request(limits, prompt)
        elif kind == "resume" and event[0] in book:
            verifier.admit(event[0], book[event[0]].limits, prompt_ids=book[event[0]].prompt)
        elif kind == "release":
            verifier.release(event)
            book.pop(event[0], None)
        elif kind == "step":
            _step_both(verifier, book, dict(zip(event[1], event[0], strict=True)))
    assert len(verifier.ledger) == 2 * len(book)


def _step_both(verifier: Verifier, book: dict[str, Request], batch: dict[str, Row]) -> None:
    before = {i: request.thinking for i, request in book.items()}
    reports = run_step(verifier, batch)
    expected = {}
    for request_id, row in batch.items():
        request = book.get(request_id)
        if request is None:
            continue
        pool = request.pools[request.thinking]
        accepted, charged, emitted = decide(row, pool)
        settle(request, charged, emitted, row.discarded)
        if row.drafts:
            expected[request_id] = (accepted, before[request_id], pool.spent)
    assert reports == expected
    entries = verifier.ledger.snapshot()
    for request_id, request in book.items():
        for thinking, key in ((True, request_id), (False, (request_id, "answer"))):
            pool, entry = request.pools[thinking], entries[key]
            assert (entry.remaining, entry.granted) == (pool.remaining, pool.granted)
            assert pool.remaining >= 0
            if not pool.amended:
                assert pool.charged <= pool.limits.budget + pool.limits.refill * pool.tokens
