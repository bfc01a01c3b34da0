"""What a round costs and what speed-up that leaves. The unit is one plain decode step of the target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from vllm_asd.tools.plan.acceptance import Number, expected_tokens, extend
from vllm_asd.tools.plan.curve import Curve

MAX_K = 16


@dataclass(frozen=True)
class Costs:
    """Costs of a verification round, each in plain decode steps of the target at the same concurrency.

    Attributes:
        draft: c, one draft token.
        verify: g, the target's pass over k + 1 tokens: one number, or a curve over k.
        overhead: Whatever comes once per round; also the whole drafter where it drafts a block in one pass.
    """

    draft: Number
    verify: Number | Curve = 1
    overhead: Number = 0

    def __post_init__(self) -> None:
        """Refuse what can't be a cost.

        Raises:
            ValueError: A negative, infinite or NaN cost, or verification for nothing.
        """
        for name, value in (("draft", self.draft), ("overhead", self.overhead)):
            if not 0 <= value < math.inf:
                raise ValueError(f"the {name} cost must be finite and 0 or more, got {value}")
        if not isinstance(self.verify, Curve) and not 0 < self.verify < math.inf:
            raise ValueError(f"the verification cost must be finite and above 0, got {self.verify}")

    def verification(self, k: int) -> Number:
        """g(k)."""
        return self.verify(k) if isinstance(self.verify, Curve) else self.verify

    def round(self, k: int) -> Number:
        """A whole round: g(k) + k c + overhead."""
        return self.verification(k) + k * self.draft + self.overhead

    @classmethod
    def from_ms(
        cls, baseline_ms: Number, draft_ms: Number, verify_ms: Number | Curve, overhead_ms: Number = 0
    ) -> Costs:
        """From times in milliseconds, `baseline_ms` being one plain decode step.

        Raises:
            ValueError: As for the class, or a baseline that is not above 0.
        """
        if not 0 < baseline_ms < math.inf:
            raise ValueError(f"the baseline must be finite and above 0 ms, got {baseline_ms}")
        if isinstance(verify_ms, Curve):
            verify: Number | Curve = verify_ms.scaled(1 / float(baseline_ms))
        else:
            verify = verify_ms / baseline_ms
        return cls(draft_ms / baseline_ms, verify, overhead_ms / baseline_ms)


class Best(NamedTuple):
    """The draft length with the highest speed-up; below 1 the best is not to speculate."""

    k: int
    speedup: Number


def speedup(expected: Number, k: int, costs: Costs) -> Number:
    """Tokens per unit of time against plain decoding: expected / round. Below 1 speculation loses."""
    return expected / costs.round(k)


def ms_per_token(expected: Number, k: int, costs: Costs, baseline_ms: Number) -> Number:
    """Milliseconds per emitted token, `baseline_ms` being one plain decode step."""
    return baseline_ms * costs.round(k) / expected


def best_k(
    acceptance: Number | Sequence[Number], costs: Costs, ks: Iterable[int] = range(1, MAX_K + 1)
) -> Best:
    """The best draft length among `ks`, the smaller one of equals.

    Args:
        acceptance: As for `expected_tokens`; joint acceptance is carried on to the largest k.
        costs: Of a round.
        ks: Draft lengths to look at.
    """
    lengths = sorted(ks)
    if isinstance(acceptance, Sequence):
        acceptance = extend(acceptance, lengths[-1])
    found = (Best(k, speedup(expected_tokens(acceptance, k), k, costs)) for k in lengths)
    return max(found, key=lambda best: (best.speedup, -best.k))


def break_even_draft_cost(expected: Number, k: int, costs: Costs) -> Number:
    """The c at which the speed-up is 1. At or below 0, no drafter is cheap enough."""
    return (expected - costs.verification(k) - costs.overhead) / k


def break_even_verification(expected: Number, k: int, costs: Costs) -> Number:
    """The g at which the speed-up is 1. At or below 0, no verification is cheap enough."""
    return expected - k * costs.draft - costs.overhead


def break_even_concurrency(expected: Number, k: int, costs: Costs, by_concurrency: Curve) -> float:
    """The concurrency from which speculation loses, interpolated between measured ones.

    Args:
        expected: Tokens per round at `k`.
        k: Draft tokens per round.
        costs: Of a round; draft cost and overhead are taken to be the same at every concurrency, and
            `costs.verify` is not read.
        by_concurrency: g at this `k` by concurrency.

    Returns:
        0 if it loses at the smallest measured concurrency already, infinity if it loses at none of them.
    """
    limit = break_even_verification(expected, k, costs)
    if by_concurrency.points[0][1] > limit:
        return 0.0
    for (x0, y0), (x1, y1) in pairwise(by_concurrency.points):
        if y1 > limit:
            return x0 + (x1 - x0) * (float(limit) - y0) / (y1 - y0)
    return math.inf
