"""The guard against plain lists: whole outputs, cut into blocks, over long random lives of requests."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eval.frontier.loops import loops
from vllm_asd.guard import GuardTable
from vllm_asd.policy.guard import extend_runs, is_looping

torch.set_num_threads(1)

IDS = [f"request-{i}" for i in range(6)]


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """A passage of 1 to 64 tokens, three times and for 24 tokens, spelt out from the end backwards."""
    for period in range(1, 65):
        length = max(3 * period, 24)
        if length > len(tokens):
            continue
        end = len(tokens) - 1
        if all(tokens[end - back] == tokens[end - back % period] for back in range(length)):
            return True
    return False


@dataclass
class Answer:
    """What the model keeps about one request: everything it said."""

    tokens: list[int] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    tripped: bool = False

    def add(self, tokens: Sequence[int], flags: Sequence[bool]) -> None:
        """One block; conditions are looked at when it is complete."""
        self.tokens += tokens
        self.flags += flags
        self.tripped = self.tripped or ends_in_loop(self.tokens) or sum(self.flags[-64:]) > 12


def say(rng: random.Random) -> tuple[list[int], list[bool]]:
    """Passages said up to four times, some of them long, from few tokens; exceptions dense or sparse."""
    tokens: list[int] = []
    flags: list[bool] = []
    for _ in range(rng.randint(1, 3)):
        period = rng.choice([*range(1, 10), 15, 16, 17, 21, 22, 63, 64, 65])
        passage = [rng.choice([0, 1, 7, 49151]) for _ in range(period)]
        length = max(rng.randint(1, 4) * period + rng.randint(-1, 1), rng.choice([0, 23, 24]))
        said = (passage * (length // period + 1))[:length]
        if said and rng.random() < 0.25:
            said[rng.randrange(len(said))] = 2
        density = rng.choice([0.0, 0.05, 0.15, 0.2, 0.3])
        tokens += said
        flags += [rng.random() < density for _ in said]
    return tokens[:260], flags[:260]


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=True), st.integers(1, 8))
def test_whole_outputs_against_lists(rng: random.Random, num_rows: int) -> None:
    """Rows at once, each cut into its own blocks; after each step the latches agree."""
    rows = [say(rng) for _ in range(num_rows)]
    ids = [str(i) for i in range(num_rows)]
    table = GuardTable(num_rows, "cpu")
    for request_id in ids:
        table.admit(request_id)
    slots = table.slots(ids)
    model = [Answer() for _ in rows]
    width = rng.choice([2, 6, 9])
    while any(len(answer.tokens) < len(row[0]) for answer, row in zip(model, rows, strict=True)):
        emitted = torch.full((num_rows, width), -1)
        exceptions = torch.zeros(num_rows, width - 1, dtype=torch.bool)
        for row, (answer, (tokens, flags)) in enumerate(zip(model, rows, strict=True)):
            start = len(answer.tokens)
            block = tokens[start : start + rng.randint(0, width)]
            # The last token of a block is the target's own.
            marks = [*flags[start:], False][: max(0, len(block) - 1)]
            emitted[row, : len(block)] = torch.tensor(block, dtype=torch.int64)
            exceptions[row, : len(marks)] = torch.tensor(marks, dtype=torch.bool)
            answer.add(block, [*marks, False][: len(block)])
        expected = [answer.tripped for answer in model]
        assert table.follow(slots, emitted, exceptions).tolist() == expected
        assert table.tripped(slots).tolist() == expected


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=True))
def test_a_loop_is_what_the_benchmark_counts_as_one(rng: random.Random) -> None:
    """The same definition as eval/frontier's, whose figures the guard is judged by; 50 outputs at a time."""
    outputs = [say(rng)[0] for _ in range(50)]
    count = torch.tensor([len(tokens) for tokens in outputs])
    ids = torch.full((len(outputs), int(count.max())), -1, dtype=torch.float64)
    for row, tokens in enumerate(outputs):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    empty = torch.zeros(len(outputs), 64, dtype=torch.float64)
    found = is_looping(extend_runs(empty, empty - 1, ids, count)).tolist()
    assert found == [loops(tokens) for tokens in outputs] == [ends_in_loop(tokens) for tokens in outputs]


class GuardMachine(RuleBasedStateMachine):
    """Admit, resume, release, reuse, follow and grow, in any order, in any batch order."""

    def __init__(self) -> None:
        """Start with room for one request: the second one makes the table grow."""
        super().__init__()
        self.table = GuardTable(capacity=1, device="cpu")
        self.model: dict[str, Answer] = {}

    @rule(request_ids=st.lists(st.sampled_from(IDS), max_size=4))
    def admit(self, request_ids: list[str]) -> None:
        """New requests start empty; running ones come back from preemption."""
        for request_id in request_ids:
            self.table.admit(request_id)
            self.model.setdefault(request_id, Answer())

    @rule(request_ids=st.lists(st.sampled_from(IDS), max_size=2))
    def release(self, request_ids: list[str]) -> None:
        """Requests finish; some ids are unknown, some come twice."""
        self.table.release(request_ids)
        for request_id in request_ids:
            self.model.pop(request_id, None)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), rng=st.randoms(use_true_random=True), dummies=st.integers(0, 2))
    def step(self, data: st.DataObject, rng: random.Random, dummies: int) -> None:
        """Several tokens for a batch in random order, dummy rows and released ids in between."""
        batch = data.draw(st.permutations([*IDS, *["dummy"] * dummies]))
        batch = batch[: data.draw(st.integers(1, len(batch)))]
        loopy, with_drafts = data.draw(st.booleans()), data.draw(st.booleans())
        width = 9 if with_drafts else 1
        emitted = torch.full((len(batch), width), -1)
        exceptions = torch.zeros(len(batch), 8, dtype=torch.bool)
        for row, request_id in enumerate(batch):
            length = rng.randint(0, width)
            tokens = [0 if loopy else rng.randint(0, 2) for _ in range(length)]
            marks = [with_drafts and place < length - 1 and rng.random() < 0.6 for place in range(length)]
            emitted[row, :length] = torch.tensor(tokens)
            exceptions[row, :length] = torch.tensor(marks[:8])
            if request_id in self.model:
                self.model[request_id].add(tokens, marks)
        slots = self.table.slots(batch)
        tripped = self.table.follow(slots, emitted, exceptions if with_drafts else None)
        assert tripped.tolist() == [self.model.get(i, Answer()).tripped for i in batch]

    @invariant()
    def slot_zero_is_untouched(self) -> None:
        """What dummy rows and unknown ids get."""
        assert not self.table._state[0].any()

    def teardown(self) -> None:
        """Latches as they should be; released, each slot ever used is empty."""
        ids = list(self.model)
        used = self.table.slots(ids)
        assert self.table.tripped(used).tolist() == [self.model[i].tripped for i in ids]
        self.table.release(ids)
        self.table.slots([])
        assert not self.table._state.any()


TestGuardMachine = GuardMachine.TestCase
TestGuardMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("period", [1, 7, 8, 9, 16, 63, 64])
def test_three_rounds_trip_and_one_token_less_does_not(period: int) -> None:
    """The bound itself, and that 65 tokens are no passage; the loop may begin anywhere in the output."""
    passage = list(range(100, 100 + period))
    length = max(3 * period, 24)
    assert ends_in_loop([1, 2, 3, *(passage * 24)[:length]])
    table = GuardTable(1, "cpu")
    table.admit("a")
    slots = table.slots(["a"])
    table.follow(slots, torch.tensor([[1, 2, 3]]))
    table.follow(slots, torch.tensor([(passage * 24)[: length - 1]]))
    assert not table.tripped(slots)
    table.follow(slots, torch.tensor([[passage[(length - 1) % period]]]))
    assert table.tripped(slots)
    table.admit("b")
    longer = torch.arange(65).repeat(3).unsqueeze(0)
    assert not table.follow(table.slots(["b"]), longer).any()
