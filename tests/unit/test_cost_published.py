"""The cost model and the output laws give the numbers that others published (DESIGN section 6.6).

Fractions in, so what is exact there is compared exactly; a figure that was published rounded is compared at
its own precision.
"""

from fractions import Fraction as F

import pytest

from vllm_asd.tools.plan.acceptance import expected_tokens
from vllm_asd.tools.plan.law import exact_law, naive_law, total_variation
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
