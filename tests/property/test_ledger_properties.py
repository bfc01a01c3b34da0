"""The ledger against a dictionary, over long random lives of requests."""

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm_asd.config import RequestLimits
from vllm_asd.kernels.accounts import BLOCK_CAP, GATE, REMAINING
from vllm_asd.ledger import LedgerEntry, RegretLedger
from vllm_asd.policy import select_prefix

torch.set_num_threads(1)

IDS = [f"request-{i}" for i in range(8)]
limits_strategy = st.builds(
    RequestLimits,
    budget=st.sampled_from([0.0, 0.1, 0.3, 1.0, 8.0]) | st.floats(0, 16),
    gate=st.sampled_from([0.0, 0.25, 1.0]),
    block_cap=st.integers(0, 4),
    refill=st.sampled_from([0.0, 0.0, 0.01, 0.125, 3.0]),
    shadow=st.booleans(),
)


@dataclass
class Account:
    """What the model keeps about one request."""

    limits: RequestLimits
    remaining: float
    granted: float = 0.0

    def charge(self, amount: float, emitted: int) -> None:
        """Pay, then refill up to the budget."""
        paid = max(0.0, self.remaining - amount)
        self.remaining = min(self.limits.budget, paid + self.limits.refill * emitted)
        self.granted += self.remaining - paid


class LedgerMachine(RuleBasedStateMachine):
    """Admit, resume, release, reuse, charge and grow, in any order, in any batch order."""

    def __init__(self) -> None:
        """Start with room for one request: the second one makes the ledger grow."""
        super().__init__()
        self.ledger = RegretLedger(capacity=1, device="cpu")
        self.model: dict[str, Account] = {}

    @rule(request_ids=st.lists(st.sampled_from(IDS), max_size=4), limits=limits_strategy)
    def admit(self, request_ids: list[str], limits: RequestLimits) -> None:
        """New requests open an account; running ones come back from preemption."""
        for request_id in request_ids:
            self.ledger.admit(request_id, limits)
            self.model.setdefault(request_id, Account(limits, limits.budget))

    @rule(request_ids=st.lists(st.sampled_from(IDS), max_size=3))
    def release(self, request_ids: list[str]) -> None:
        """Requests finish; some ids are unknown, some come twice."""
        self.ledger.release(request_ids)
        for request_id in request_ids:
            self.model.pop(request_id, None)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), dummies=st.integers(0, 2))
    def step(self, data: st.DataObject, dummies: int) -> None:
        """Charge a batch in random order, dummy rows and released ids in between."""
        batch = data.draw(st.permutations([*IDS, *["dummy"] * dummies]))
        batch = batch[: data.draw(st.integers(0, len(batch)))]
        shares = data.draw(st.lists(st.sampled_from([0.0, 0.1, 1 / 3, 1.0, 1.5]), min_size=10, max_size=10))
        emitted = data.draw(st.lists(st.integers(0, 9), min_size=10, max_size=10))[: len(batch)]
        amounts = [
            share * (self.model[request_id].remaining if request_id in self.model else 1.0)
            for share, request_id in zip(shares, batch, strict=False)
        ]
        slots = self.ledger.slots(batch)
        held = self.ledger.accounts.index_select(0, slots).tolist()
        assert held == [self.row(request_id) for request_id in batch]
        spent = torch.empty(len(batch), dtype=torch.float64)
        charged = torch.tensor(amounts, dtype=torch.float64)
        before = self.ledger.charge(slots, charged, torch.tensor(emitted), spent)
        assert before.tolist() == [row[:2] for row in held]
        if data.draw(st.booleans()):
            self.ledger.restore(slots, before)
            assert self.ledger.accounts.index_select(0, slots).tolist() == held
            return
        for request_id, amount, tokens in zip(batch, amounts, emitted, strict=True):
            if request_id in self.model:
                self.model[request_id].charge(amount, tokens)
        assert spent.tolist() == [self.spent(request_id) for request_id in batch]

    def row(self, request_id: str) -> list[float]:
        """What the ledger should hold of an id, known or not."""
        account = self.model.get(request_id, Account(RequestLimits(0.0, 0.0, 0), 0.0))
        limits = account.limits
        amounts = [account.remaining, account.granted, limits.budget, limits.refill]
        return [*amounts, limits.gate, limits.block_cap, limits.shadow]

    def spent(self, request_id: str) -> float:
        """What it should have spent."""
        remaining, granted, budget = self.row(request_id)[:3]
        return budget + granted - remaining

    @rule()
    def compare(self) -> None:
        """Read everything back; not at each step, so that writes have the chance to pile up."""
        expected = {
            request_id: LedgerEntry(account.limits, account.remaining, account.granted)
            for request_id, account in self.model.items()
        }
        assert self.ledger.snapshot() == expected
        for request_id, account in self.model.items():
            spent = self.ledger.spent(request_id)
            assert 0 <= spent <= account.limits.budget + account.granted
            if account.limits.refill == 0:
                assert spent <= account.limits.budget

    @invariant()
    def membership(self) -> None:
        """Ids known to the host."""
        assert len(self.ledger) == len(self.model)
        assert [request_id in self.ledger for request_id in IDS] == [i in self.model for i in IDS]

    def teardown(self) -> None:
        """Compare once more, then release all: each slot ever used is zero."""
        self.compare()
        used = self.ledger.slots(list(self.model))
        self.ledger.release(list(self.model))
        self.ledger.slots([])
        assert not self.ledger.accounts.index_select(0, used).any()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("refill", [0.0, 0.003])
def test_the_budget_holds_over_thousands_of_blocks(refill: float) -> None:
    """Policy and ledger together: what is charged never passes B, or B and the refill, and B gets used up."""
    generator = torch.Generator().manual_seed(0)
    rng = random.Random(0)
    ids = [str(i) for i in range(24)]
    budgets = {request_id: rng.choice([0.0, 0.1, 1.0, 8.0, rng.uniform(0, 30)]) for request_id in ids}
    ledger = RegretLedger(capacity=4, device="cpu")
    for request_id in ids:
        ledger.admit(request_id, RequestLimits(budgets[request_id], gate=0.25, block_cap=2, refill=refill))
    charged_to, emitted_by = dict.fromkeys(ids, 0.0), dict.fromkeys(ids, 0)
    for _ in range(1500):
        batch = rng.sample(ids, rng.randint(1, len(ids)))
        shape = (len(batch), 7)
        slots = ledger.slots(batch)
        held = ledger.accounts.index_select(0, slots)
        verdict = select_prefix(
            torch.empty(shape).exponential_(2.0, generator=generator),
            torch.rand(shape, generator=generator) < 0.7,
            torch.full(shape[:1], 7),
            held[:, REMAINING],
            held[:, GATE],
            held[:, BLOCK_CAP],
        )
        assert (verdict.charged <= held[:, REMAINING]).all()
        ledger.charge(slots, verdict.charged, verdict.accepted + 1, torch.empty_like(verdict.charged))
        for request_id, charged, accepted in zip(
            batch, verdict.charged.tolist(), verdict.accepted.tolist(), strict=True
        ):
            charged_to[request_id] += charged
            emitted_by[request_id] += accepted + 1
    for key, entry in ledger.snapshot().items():
        request_id = str(key)
        assert entry.spent <= budgets[request_id] + entry.granted
        assert entry.granted <= refill * emitted_by[request_id] * (1 + 1e-12)
        assert entry.spent == pytest.approx(charged_to[request_id], abs=1e-9)
        if refill == 0.0:
            assert entry.spent <= budgets[request_id]
            assert entry.spent >= 0.9 * budgets[request_id]
