"""The look-ahead yardstick is what it claims: no prefix within the limits is worth more at its price."""

import math
import random

import pytest
import torch

from eval.frontier.lookahead import best_prefix
from tests.property.scalar_reference import Block
from tests.property.test_policy_properties import collate, random_block
from vllm_asd.policy import Pricing, Verdict, select_prefix, strict_prefix

torch.set_num_threads(1)


def prefixes(block: Block) -> list[tuple[float, int, float, int]]:
    """Every prefix that the limits allow, as (value, length, charged, exceptions), by trying them all."""
    found = []
    for length in range(block.num_draft + 1):
        misses = [i for i in range(length) if not block.is_match[i]]
        charged = sum(block.regret[i] for i in misses)
        allowed = not misses or (
            not block.is_strict
            and all(block.is_acceptable(i) and not block.is_protected(i) for i in misses)
            and len(misses) <= block.block_cap
            and charged <= block.remaining
        )
        if allowed:
            found.append((length - charged / block.gate if misses else length, length, charged, len(misses)))
    return found


@pytest.mark.parametrize("max_draft", [0, 1, 2, 3, 5, 7, 16])
def test_it_is_the_best_of_all_prefixes(max_draft: int) -> None:
    """Against trying every prefix, bit for bit: ties, NaN, inf, protected tokens, limits at their edges."""
    rng = random.Random(max_draft)
    blocks = [random_block(rng, max_draft) for _ in range(1500)]
    batch = collate(blocks, max_draft, rng)
    columns = [column.tolist() for column in best_prefix(*batch.scored)]
    for block, accepted, charged, exceptions, reused in zip(blocks, *columns, strict=True):
        _, length, cost, misses = max(prefixes(block))
        assert (accepted, charged, exceptions) == (length, cost, misses), block
        strict = next((i for i, match in enumerate(block.is_match) if not match), block.num_draft)
        assert reused == max(0, length - strict - misses)


def value(verdict: Verdict, gate: torch.Tensor) -> torch.Tensor:
    """Tokens less what was paid for them, at the price ``gate``."""
    paid = torch.where(verdict.charged > 0, verdict.charged / gate, 0)
    return verdict.accepted - paid


@pytest.mark.parametrize("pricing", ["remaining", "realized"])
def test_no_walk_under_the_same_limits_is_worth_more(pricing: Pricing) -> None:
    """And some are worth less, so that the yardstick is not idle."""
    rng = random.Random(f"dominance {pricing}")
    batch = collate([random_block(rng, 8) for _ in range(3000)], 8, rng)
    best, walk = best_prefix(*batch.scored), select_prefix(*batch.scored, pricing=pricing)
    better = value(best, batch.gate) - value(walk, batch.gate)
    assert (better >= -1e-9).all()
    assert (better > 0.5).any()


def test_it_reaches_at_least_as_far_as_realized_pricing() -> None:
    """At one price it only adds to what the walk keeps; the tokens added are paid at that price at most."""
    rng = random.Random("reach")
    blocks = [random_block(rng, 8) for _ in range(3000)]
    batch = collate(blocks, 8, rng)
    # Dyadic, so that no price rounds across the gate.
    regret = torch.where(batch.regret.isfinite(), (batch.regret * 16).round() / 16, batch.regret)
    gate = torch.tensor([rng.choice([0.125, 0.25, 0.5, 1.0]) for _ in blocks], dtype=torch.float64)
    batch = batch._replace(regret=regret, gate=gate)
    best, walk = best_prefix(*batch.scored), select_prefix(*batch.scored, pricing="realized")
    more = best.accepted - walk.accepted
    assert (more >= 0).all()
    assert (more > 0).any()
    assert (best.charged - walk.charged <= gate * more).all()


def test_limits_at_zero_are_strict_and_an_infinite_gate_is_not() -> None:
    """Strict rows keep what strict keeps, for nothing; at any price the longest allowed prefix is kept."""
    rng = random.Random("strict")
    blocks = [random_block(rng, 8) for _ in range(1000)]
    batch = collate(blocks, 8, rng)
    is_strict = torch.tensor([block.is_strict for block in blocks])
    verdict = best_prefix(*batch.scored)
    assert torch.equal(verdict.accepted[is_strict], strict_prefix(batch.is_match, batch.num_draft)[is_strict])
    assert (verdict.charged[is_strict] == 0).all()
    free = batch._replace(gate=torch.full_like(batch.gate, math.inf))
    walk = select_prefix(*free.scored)
    assert torch.equal(best_prefix(*free.scored).accepted, walk.accepted)
