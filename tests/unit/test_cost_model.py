"""What holds for every acceptance and every cost."""

import math
from fractions import Fraction as F

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_asd.tools.plan.acceptance import (
    acceptance_of_mean,
    expected_tokens,
    extend,
    independent_joint,
    joint_from_counters,
)
from vllm_asd.tools.plan.curve import Curve, parse_curve
from vllm_asd.tools.plan.plan import Arm, plan_arm
from vllm_asd.tools.plan.speed import (
    MAX_K,
    Costs,
    best_k,
    break_even_concurrency,
    break_even_draft_cost,
    speedup,
)

rates = st.fractions(0, 1, max_denominator=50)
lengths = st.integers(1, MAX_K)
draft_costs = st.fractions(0, 1, max_denominator=20)


@given(rates, rates, lengths)
def test_more_acceptance_is_more_tokens(a: F, b: F, k: int) -> None:
    low, high = sorted((a, b))
    assert expected_tokens(low, k) <= expected_tokens(high, k)
    assert (low == high) == (expected_tokens(low, k) == expected_tokens(high, k))


@given(rates, lengths)
def test_a_longer_draft_is_never_fewer_tokens(a: F, k: int) -> None:
    gained = expected_tokens(a, k) - expected_tokens(a, k - 1)
    assert gained == a**k
    assert 1 <= expected_tokens(a, k) <= k + 1


@given(rates, lengths)
def test_joint_is_independent_where_the_data_are(a: F, k: int) -> None:
    joint = independent_joint(a, k)
    assert expected_tokens(joint, k) == expected_tokens(a, k)
    assert extend(joint, MAX_K) == independent_joint(a, MAX_K)
    assert acceptance_of_mean(float(sum(joint)), k) == pytest.approx(float(a), abs=1e-9)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=50))
def test_counters_give_the_mean_of_the_rounds(accepted: list[int]) -> None:
    """No independence needed: 1 + the mean accepted length, whatever the rounds were."""
    counters = [sum(length > position for length in accepted) for position in range(7)]
    joint = joint_from_counters(counters, len(accepted))
    assert expected_tokens(joint, 7) == pytest.approx(1 + sum(accepted) / len(accepted))


def test_independence_misjudges_what_is_not_independent() -> None:
    """Half of the blocks accepted whole, half not at all: the mean is right at K and wrong elsewhere."""
    arm = Arm("strict", (0.5,) * 6)
    rows = plan_arm(arm, Costs(0.05)).rows
    assert rows[5].independent_expected_tokens == pytest.approx(rows[5].expected_tokens)
    assert rows[0].independent_expected_tokens > rows[0].expected_tokens + 0.3
    assert [row.k for row in rows if row.extrapolated] == list(range(7, MAX_K + 1))


@given(rates, lengths, draft_costs)
def test_break_even_draft_cost_breaks_even(a: F, k: int, overhead: F) -> None:
    expected = expected_tokens(a, k)
    cost = break_even_draft_cost(expected, k, Costs(0, F("1.1"), overhead))
    if cost >= 0:
        assert speedup(expected, k, Costs(cost, F("1.1"), overhead)) == 1
    else:
        assert speedup(expected, k, Costs(0, F("1.1"), overhead)) < 1


@given(rates, draft_costs)
def test_best_k_is_beaten_by_none(a: F, draft: F) -> None:
    costs = Costs(draft)
    best = best_k(a, costs)
    others = [speedup(expected_tokens(a, k), k, costs) for k in range(1, MAX_K + 1)]
    assert best.speedup == max(others) == others[best.k - 1]
    assert max(others[: best.k - 1], default=F(0)) < best.speedup


class TestConcurrency:
    curve = Curve.through({1: 1.0, 4: 1.0, 16: 2.0, 64: 4.0})

    @given(st.floats(1.01, 3.9))
    def test_breaks_even_where_the_cost_meets_the_tokens(self, expected: float) -> None:
        users = break_even_concurrency(expected, 3, Costs(0), self.curve)
        assert 4 < users < 64
        assert speedup(expected, 3, Costs(0, self.curve(users))) == pytest.approx(1)
        assert speedup(expected, 3, Costs(0, self.curve(users * 1.05))) < 1

    def test_never_and_always(self) -> None:
        assert break_even_concurrency(4.0, 3, Costs(0), self.curve) == math.inf
        assert break_even_concurrency(1.2, 3, Costs(0.1), self.curve) == 0

    def test_draft_and_overhead_count(self) -> None:
        assert break_even_concurrency(2.0, 2, Costs(0.2, overhead=0.1), self.curve) == pytest.approx(10)


def test_curve_goes_through_its_points_and_on() -> None:
    curve = Curve.through({8: 1.5, 4: 1.1})
    assert [curve(x) for x in (1, 4, 6, 8, 12)] == pytest.approx([1.1, 1.1, 1.3, 1.5, 1.9])
    assert Curve.through({4: 2, 8: 1})(16) == 1
    assert parse_curve("1.25") == 1.25
    assert parse_curve("8=1.5,4=1.1") == curve


@pytest.mark.parametrize("text", ["", "a", "1=", "1=2=3", "1=2,", "0=1", "1=-1", "1=nan"])
def test_curve_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"cost curve|expected a number"):
        parse_curve(text)


@pytest.mark.parametrize(
    ("acceptance", "k", "message"),
    [
        (1.1, 2, "between 0 and 1"),
        (math.nan, 2, "between 0 and 1"),
        ((0.5, 0.6), 2, "rises from 0.5 to 0.6"),
        ((0.5, 0.4), 3, "known for 2 positions"),
        ((), 1, "empty"),
        (0.5, -1, "0 or more"),
    ],
)
def test_acceptance_refuses(acceptance: float | tuple[float, ...], k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expected_tokens(acceptance, k)


@pytest.mark.parametrize("costs", [(-0.1, 1, 0), (0, 0, 0), (0, 1, -1), (math.nan, 1, 0), (0, math.inf, 0)])
def test_costs_refuse(costs: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="cost must be finite"):
        Costs(*costs)


class TestVerdict:
    def test_says_that_speculation_loses(self) -> None:
        lost = plan_arm(Arm("strict", 0.7), Costs(0.05, 3))
        assert "LOSES at every k" in lost.verdict
        assert "less than 0.027 of a decode step" in lost.verdict
        assert lost.as_json()["loses"]

    def test_says_when_no_drafter_helps(self) -> None:
        assert "no drafter is cheap enough" in plan_arm(Arm("strict", 0.5), Costs(0.05, 3)).verdict

    def test_says_at_which_k_it_loses(self) -> None:
        verdict = plan_arm(Arm("ASD", 0.45), Costs(0.3)).verdict
        assert verdict.startswith("ASD: best k=1, 1.450 tokens per round, 1.115x")
        assert verdict.endswith("LOSES at k=3-16.")

    def test_says_when_it_only_breaks_even(self) -> None:
        assert "gains nothing" in plan_arm(Arm("strict", 0.3), Costs(0.3)).verdict

    def test_marks_a_best_k_that_nobody_measured(self) -> None:
        assert "(extrapolated)" in plan_arm(Arm("strict", (0.9, 0.81)), Costs(0.01)).verdict
