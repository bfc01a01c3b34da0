"""Output laws: exact returns p for any q, ASD is the rule that the product runs."""

import math
from fractions import Fraction as F

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_asd.policy import select_prefix
from vllm_asd.tools.plan.law import asd_law, exact_law, greedy_law, naive_law, total_variation

Law = tuple[F, ...]


@st.composite
def laws(draw: st.DrawFn) -> tuple[Law, Law]:
    """Two laws over the same 1 to 8 tokens, with zeros and ties among them."""
    size = draw(st.integers(1, 8))
    weights = st.lists(st.integers(0, 6), min_size=size, max_size=size).filter(any)
    p, q = draw(weights), draw(weights)
    return tuple(F(w, sum(p)) for w in p), tuple(F(w, sum(q)) for w in q)


@given(laws())
def test_exact_returns_p_for_any_q(pair: tuple[Law, Law]) -> None:
    p, q = pair
    assert exact_law(p, q) == p


@given(laws(), st.floats(0, 2), st.integers(1, 8), st.floats(0, 4))
def test_every_law_adds_up_to_one(pair: tuple[Law, Law], gate: float, at_stake: int, rho: float) -> None:
    p, q = pair
    for law in (naive_law(p, q), greedy_law(p), asd_law(p, q, gate, at_stake, rho)):
        assert sum(law) == 1
        assert all(value >= 0 for value in law)


@given(laws())
def test_naive_errs_by_what_it_rejects_at_most(pair: tuple[Law, Law]) -> None:
    p, q = pair
    assert total_variation(naive_law(p, q), p) <= total_variation(p, q)


@given(laws(), st.floats(0, 4), st.integers(1, 8))
def test_asd_without_gate_or_budget_is_strict(pair: tuple[Law, Law], limit: float, at_stake: int) -> None:
    p, q = pair
    assert asd_law(p, q, 0, at_stake, limit) == asd_law(p, q, limit, at_stake, 0) == greedy_law(p)


@given(laws(), st.sampled_from((0.1, 0.25, 1.0)), st.integers(1, 5), st.sampled_from((0.5, 2.0, 8.0)))
def test_asd_keeps_what_the_rule_keeps(
    pair: tuple[Law, Law], gate: float, at_stake: int, remaining: float
) -> None:
    """Mass stays on a token exactly if `select_prefix` accepts it as the first of `at_stake` drafts."""
    p, q = pair
    size, best = len(p), greedy_law(p).index(1)
    # The law's own expression: two roundings of one regret could fall on either side of a gate.
    regrets = [math.log(p[best] / value) if value else math.inf for value in p]
    regret, match = (
        torch.zeros(size, at_stake, dtype=torch.float64),
        torch.ones(size, at_stake, dtype=torch.bool),
    )
    regret[:, 0] = torch.tensor(regrets)
    match[:, 0] = torch.arange(size) == best
    verdict = select_prefix(
        regret,
        match,
        torch.full((size,), at_stake),
        torch.full((size,), remaining, dtype=torch.float64),
        torch.full((size,), gate, dtype=torch.float64),
        torch.ones(size, dtype=torch.int64),
    )
    law = asd_law(p, q, gate, at_stake, remaining)
    for token in range(size):
        if token != best:
            assert law[token] == (q[token] if verdict.accepted[token] else 0)


@given(laws())
def test_total_variation_is_a_distance(pair: tuple[Law, Law]) -> None:
    p, q = pair
    assert 0 <= total_variation(p, q) == total_variation(q, p) <= 1
    assert (total_variation(p, q) == 0) == (p == q)


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        ((0.5, 0.5), (1.0,), "P has 2 entries and Q has 1"),
        ((0.5, 0.6), (0.5, 0.5), "P adds up to 1.1"),
        ((0.5, 0.5), (1.5, -0.5), "Q has an entry"),
        ((math.nan, 1.0), (0.5, 0.5), "P has an entry"),
    ],
)
def test_refuses_what_is_no_law(p: tuple[float, ...], q: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact_law(p, q)
