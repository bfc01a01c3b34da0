"""The cost model and the output laws give the numbers that others published (DESIGN section 6.6).

Fractions in, so what is exact there is compared exactly; a figure that was published rounded is compared at
its own precision.
"""

import math
import random
from fractions import Fraction as F

import pytest

from vllm_asd.tools.plan.acceptance import expected_tokens
from vllm_asd.tools.plan.law import correction, exact_law, naive_law, total_variation
from vllm_asd.tools.plan.speed import Costs, best_k, ms_per_token, speedup

P = (F("0.5"), F("0.3"), F("0.2"))
KNOWN = (F("0.7"), F("0.2"), F("0.1"))
FAR = (F("0.2"), F("0.5"), F("0.3"))
A = F("0.7")


def test_cheap_draft() -> None:
    costs = Costs(draft=F("0.05"))
    assert expected_tokens(A, 6) == F("3.058819")
    best = best_k(A, costs)
    assert best.k == 6
    assert best.speedup == F("3.058819") / F("1.3")
    assert f"{float(best.speedup):.3f}" == "2.353"


def test_dear_draft() -> None:
    best = best_k(A, Costs(draft=F("0.20")))
    assert best.k == 3
    assert best.speedup == F("2.533") / F("1.6")
    assert f"{float(best.speedup):.3f}" == "1.583"


def test_dear_verification_loses() -> None:
    lost = speedup(expected_tokens(A, 6), 6, Costs(draft=F("0.05"), verify=3))
    assert lost == F("3.058819") / F("3.3")
    assert f"{float(lost):.3f}" == "0.927"


@pytest.mark.parametrize(("acceptance", "published"), [("0.8", "19.04"), ("0.2", "51.22")])
def test_milliseconds_per_token(acceptance: str, published: str) -> None:
    costs = Costs.from_ms(baseline_ms=F(40), draft_ms=F(3), verify_ms=F(50), overhead_ms=F(2))
    expected = expected_tokens(F(acceptance), 4)
    found = ms_per_token(expected, 4, costs, F(40))
    assert found == F(4 * 3 + 50 + 2) / expected
    assert f"{float(found):.2f}" == published


@pytest.mark.parametrize(("q", "naive"), [(KNOWN, ("0.6", "0.26", "0.14")), (FAR, ("0.35", "0.39", "0.26"))])
def test_exact_gives_p_back_and_naive_does_not(q: tuple[F, ...], naive: tuple[str, ...]) -> None:
    assert exact_law(P, q) == P
    assert naive_law(P, q) == tuple(F(value) for value in naive)


def test_total_variation_of_the_naive_limit() -> None:
    assert total_variation(naive_law(P, FAR), P) == F("0.15")


@pytest.mark.parametrize(
    ("acceptance", "cost", "k", "best"),
    [
        ("0.3", "0.05", 2, "1.264"),
        ("0.7", "0.05", 6, "2.353"),
        ("0.9", "0.05", 13, "4.674"),
        ("0.3", "0.20", 1, "1.083"),
        ("0.7", "0.20", 3, "1.583"),
        ("0.9", "0.20", 7, "2.373"),
    ],
)
def test_speed_grid(acceptance: str, cost: str, k: int, best: str) -> None:
    found = best_k(F(acceptance), Costs(draft=F(cost)))
    assert (found.k, f"{float(found.speedup):.3f}") == (k, best)


@pytest.mark.parametrize(("acceptance", "published"), [("0.8", "2.10"), ("0.2", "0.78")])
def test_speedup_of_the_published_milliseconds(acceptance: str, published: str) -> None:
    costs = Costs.from_ms(baseline_ms=F(40), draft_ms=F(3), verify_ms=F(50), overhead_ms=F(2))
    assert f"{float(speedup(expected_tokens(F(acceptance), 4), 4, costs)):.2f}" == published


@pytest.mark.parametrize("acceptance", ["0.3", "0.7", "0.9"])
@pytest.mark.parametrize("cost", ["0.05", "0.20"])
def test_one_more_draft_pays_exactly_under_the_marginal_condition(acceptance: str, cost: str) -> None:
    a, c = F(acceptance), F(cost)
    costs = Costs(draft=c)
    for k in range(1, 15):
        faster = speedup(expected_tokens(a, k + 1), k + 1, costs) > speedup(expected_tokens(a, k), k, costs)
        assert faster == (a ** (k + 1) * (1 + c * k) > c * expected_tokens(a, k))


def test_the_published_draws() -> None:
    """200,000 drafts, each verified by both corrections: the published shares, digit for digit."""
    draws, generator = 200_000, random.Random(20260923)
    p, q = [float(value) for value in P], [float(value) for value in FAR]
    residual = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    exact, naive = [0] * 3, [0] * 3
    for _ in range(draws):
        draft = generator.choices(range(3), q)[0]
        accepted = generator.random() < min(1, p[draft] / q[draft])
        exact[draft if accepted else generator.choices(range(3), residual)[0]] += 1
        naive[draft if accepted else generator.choices(range(3), p)[0]] += 1
    assert [f"{count / draws:.5f}" for count in exact] == ["0.50009", "0.29844", "0.20147"]
    assert [f"{count / draws:.5f}" for count in naive] == ["0.35005", "0.38831", "0.26164"]
    assert f"{math.sqrt(0.25 / draws):.6f}" == "0.001118"


def test_what_the_exact_correction_is_made_of() -> None:
    assert correction(P, FAR) == (F("0.7"), F("0.3"), (F(1), F(0), F(0)))
    assert correction(P, P) == (1, 0, None)
