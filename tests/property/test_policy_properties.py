"""The tensors agree with a scalar walk through DESIGN section 2, and the rule keeps its promises."""

import math
import random
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.property import scalar_reference
from tests.property.scalar_reference import Block
from vllm_asd.policy import Pricing, StopReason, Verdict, select_prefix, stop_reason, strict_prefix

torch.set_num_threads(1)

PRICINGS: tuple[Pricing, Pricing] = ("remaining", "realized")
# Dyadic values meet the limits exactly; decimal ones round, so that a sum in another order or width shows.
UNACCEPTABLE = [math.inf, math.nan, -0.5, -math.inf]
REGRETS = [0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 0.1, 0.2, 0.3, 0.7, 3.0, 20.0, *UNACCEPTABLE]
GATES = [0.0, 0.05, 0.1, 0.125, 0.25, 0.5, 1.0, 4.0, math.inf, math.nan, -1.0]
CAPS = [0, 1, 2, 3, 5, 200, -1]
BUDGETS = [0.0, 0.1, 0.25, 0.3, 0.1 + 0.2, 0.5, 1.0, 2.0, 8.0, 1e6, math.inf, math.nan, -1.0]


Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Batch(NamedTuple):
    """Arguments of select_prefix, and the mask of protected positions."""

    regret: Tensor
    is_match: Tensor
    num_draft: Tensor
    remaining: Tensor
    gate: Tensor
    block_cap: Tensor
    protected: Tensor

    @property
    def scored(self) -> Arguments:
        """The six arguments, protected positions at +inf as the caller is asked to."""
        return (self.regret.masked_fill(self.protected, math.inf), *self[1:6])

    def rows(self, index: Tensor) -> "Batch":
        """Some rows, in another order."""
        return Batch(*(column[index] for column in self))


def collate(blocks: list[Block], width: int, padding: random.Random) -> Batch:
    """Pad blocks to one batch; the padding holds garbage, matches included."""

    def pad(values: list[float], fill: list[float]) -> list[float]:
        return values + [padding.choice(fill) for _ in range(width - len(values))]

    shape = (len(blocks), width)
    return Batch(
        regret=torch.tensor([pad(list(b.regret), REGRETS) for b in blocks], dtype=torch.float32).view(shape),
        is_match=torch.tensor([pad(list(b.is_match), [0, 1]) for b in blocks], dtype=torch.bool).view(shape),
        num_draft=torch.tensor([b.num_draft for b in blocks], dtype=torch.int32),
        remaining=torch.tensor([b.remaining for b in blocks], dtype=torch.float64),
        gate=torch.tensor([b.gate for b in blocks], dtype=torch.float64),
        block_cap=torch.tensor([b.block_cap for b in blocks], dtype=torch.int32),
        protected=torch.tensor([pad(list(b.protected), [0, 1]) for b in blocks], dtype=torch.bool).view(
            shape
        ),
    )


def float32(value: float) -> float:
    """Round as the product's regrets are."""
    return torch.tensor(value, dtype=torch.float32).item()


def random_block(rng: random.Random, max_draft: int) -> Block:
    """Draw a block whose limits are often met exactly; long ones keep going often enough to be exercised."""
    num_draft = rng.randint(0, max_draft)
    match_rate = rng.choice([0.2, 0.6, 0.9, 1.0])
    palette = rng.choice([REGRETS, REGRETS[:10], [0.0, 0.1, 0.2, 0.3]])
    drawn = [rng.choice(palette) if rng.random() < 0.7 else rng.expovariate(2) for _ in range(num_draft)]
    regret = [float32(value) for value in drawn]
    is_match = [rng.random() < match_rate for _ in range(num_draft)]
    misses = [r for r, match in zip(regret, is_match, strict=True) if not match and 0 <= r < math.inf]
    partial_sum = sum(misses[: rng.randint(0, len(misses))])
    edge_price = rng.choice(misses) / rng.randint(1, num_draft) if misses else 1.0
    return Block(
        regret=regret,
        is_match=is_match,
        remaining=rng.choice([partial_sum, math.nextafter(partial_sum, -1), rng.choice(BUDGETS)]),
        gate=rng.choice([edge_price, rng.choice(GATES)]),
        block_cap=rng.choice([len(misses), max(0, len(misses) - 1), rng.choice(CAPS)]),
        protected=[rng.random() < 0.03 for _ in range(num_draft)],
    )


def assert_agrees(blocks: list[Block], batch: Batch, pricing: Pricing) -> Verdict:
    """Compare each row with the scalar reference, sums bit for bit."""
    verdict = select_prefix(*batch.scored, pricing=pricing)
    stops = stop_reason(*batch[:3], verdict, *batch[3:6], batch.protected, pricing)
    strict = strict_prefix(batch.is_match, batch.num_draft)
    columns = [column.tolist() for column in (*verdict, stops, strict)]
    for block, *row, stop, strict_length in zip(blocks, *columns, strict=True):
        expected = scalar_reference.verify(Block(**{**vars(block), "pricing": pricing}))
        got = (*row, StopReason(stop).name.lower())
        assert got == (
            expected.accepted,
            expected.charged,
            expected.exceptions,
            expected.reused,
            expected.stop,
        ), block
        assert strict_length == scalar_reference.strict_accepted(block.is_match)
    return verdict


@pytest.mark.parametrize("pricing", PRICINGS)
@pytest.mark.parametrize("max_draft", [0, 1, 2, 3, 5, 7, 8, 16, 33, 128])
def test_agrees_with_the_scalar_reference(pricing: Pricing, max_draft: int) -> None:
    """Ragged batches of every width: ties, NaN, inf, protected tokens and limits at their edges."""
    rng = random.Random(f"{pricing} {max_draft}")
    blocks = [random_block(rng, max_draft) for _ in range(1500 if max_draft <= 16 else 400)]
    assert_agrees(blocks, collate(blocks, max_draft, rng), pricing)


def test_the_random_blocks_reach_every_stop_and_every_count() -> None:
    """The comparison above would be idle if its cases were."""
    rng = random.Random(0)
    outcomes = [scalar_reference.verify(random_block(rng, 8)) for _ in range(3000)]
    for reason in StopReason:
        assert sum(outcome.stop == reason.name.lower() for outcome in outcomes) > 30, reason
    assert sum(outcome.exceptions >= 2 and outcome.reused >= 1 for outcome in outcomes) > 30


@st.composite
def blocks(draw: st.DrawFn, max_draft: int = 6) -> Block:
    """A small block that shrinks well."""
    num_draft = draw(st.integers(0, max_draft))
    positions = st.tuples(st.sampled_from(REGRETS), st.booleans(), st.booleans())
    drawn = draw(st.lists(positions, min_size=num_draft, max_size=num_draft))
    return Block(
        regret=[float32(regret) for regret, _, _ in drawn],
        is_match=[match for _, match, _ in drawn],
        remaining=draw(st.sampled_from(BUDGETS) | st.floats(0, 4)),
        gate=draw(st.sampled_from(GATES) | st.floats(0, 1)),
        block_cap=draw(st.sampled_from(CAPS)),
        protected=[protected for _, _, protected in drawn],
    )


batches = st.lists(blocks(), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(batches, st.sampled_from(PRICINGS), st.randoms(use_true_random=False), st.integers(0, 3))
def test_small_blocks_agree_with_the_scalar_reference(
    rows: list[Block], pricing: Pricing, rng: random.Random, extra_width: int
) -> None:
    """The same comparison on cases that shrink, in batches wider than their longest row."""
    width = max(row.num_draft for row in rows) + extra_width
    assert_agrees(rows, collate(rows, width, rng), pricing)


def large_batch(seed: str, max_draft: int = 12, num_rows: int = 800) -> tuple[Batch, random.Random]:
    """Draw a batch for the invariants, which need no reference."""
    rng = random.Random(seed)
    return collate([random_block(rng, max_draft) for _ in range(num_rows)], max_draft, rng), rng


@pytest.mark.parametrize("pricing", PRICINGS)
@pytest.mark.parametrize("seed", range(6))
def test_what_a_verdict_never_does(pricing: Pricing, seed: int) -> None:
    """Never below strict, never above the budget, the cap or the proposal; strict rows exactly strict."""
    batch, _ = large_batch(f"bounds {seed}")
    verdict = select_prefix(*batch.scored, pricing=pricing)
    strict = strict_prefix(batch.is_match, batch.num_draft)
    assert (verdict.accepted >= strict).all()
    assert (verdict.accepted <= batch.num_draft).all()
    assert (verdict.charged >= 0).all()
    is_strict = ~((batch.remaining > 0) & (batch.gate > 0) & (batch.block_cap > 0))
    assert (verdict.charged <= batch.remaining)[~is_strict].all()
    assert (verdict.exceptions <= batch.block_cap)[~is_strict].all()
    for column in (verdict.charged, verdict.exceptions, verdict.reused, verdict.accepted - strict):
        assert (column[is_strict] == 0).all()
        assert (column[~is_strict] > 0).any()
    assert torch.equal(verdict.accepted > strict, verdict.exceptions > 0)


@pytest.mark.parametrize("pricing", PRICINGS)
@pytest.mark.parametrize("limit", ["remaining", "gate", "block_cap"])
@pytest.mark.parametrize("seed", range(4))
def test_a_laxer_limit_never_shortens_a_block(pricing: Pricing, limit: str, seed: int) -> None:
    """Doubling one limit, the others fixed; a limit that is NaN or negative stays strict."""
    batch, _ = large_batch(f"monotone {limit} {seed}")
    laxer = batch._replace(**{limit: getattr(batch, limit) * 2})
    tight = select_prefix(*batch.scored, pricing=pricing)
    loose = select_prefix(*laxer.scored, pricing=pricing)
    assert (loose.accepted >= tight.accepted).all()
    assert (loose.accepted > tight.accepted).any()


@pytest.mark.parametrize("pricing", PRICINGS)
@pytest.mark.parametrize("seed", range(4))
def test_rows_do_not_see_each_other(pricing: Pricing, seed: int) -> None:
    """Neither the order of the batch, nor who else is in it, nor the width of the padding changes a row."""
    batch, rng = large_batch(f"rows {seed}")
    whole = torch.stack([column.double() for column in select_prefix(*batch.scored, pricing=pricing)])
    order = torch.tensor(rng.sample(range(len(batch.num_draft)), 300))
    subset = select_prefix(*batch.rows(order).scored, pricing=pricing)
    assert torch.equal(torch.stack([column.double() for column in subset]), whole[:, order])
    regret = torch.nn.functional.pad(batch.scored[0], (0, 5))
    is_match = torch.nn.functional.pad(batch.is_match, (0, 5), value=True)
    wider = select_prefix(regret, is_match, *batch.scored[2:], pricing=pricing)
    assert torch.equal(torch.stack([column.double() for column in wider]), whole)


@pytest.mark.parametrize("pricing", PRICINGS)
def test_what_stands_at_a_match_is_not_read(pricing: Pricing) -> None:
    """A match in a row of NaN has the regret +inf: it must stay free and must not spoil the sum behind it."""
    batch, _ = large_batch("matches")
    expected = select_prefix(*batch.scored, pricing=pricing)
    for poison in (math.nan, math.inf, -1.0, 0.0):
        regret = torch.where(batch.is_match, poison, batch.scored[0])
        got = select_prefix(regret, *batch.scored[1:], pricing=pricing)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
