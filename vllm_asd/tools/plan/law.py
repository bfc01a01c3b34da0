"""What one position emits under exact, naive and approximate verification.

Exact and naive correction verify a *sampled* draft against the target's law p. Strict greedy verification and
ASD run at temperature 0, where the target's own law is a single token, its argmax: the distance of the ASD
law is measured from there.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from vllm_asd.tools.plan.acceptance import Number

Law = tuple[Number, ...]
_SUM_TOLERANCE = 1e-6


def exact_law(p: Sequence[Number], q: Sequence[Number]) -> Law:
    """Keep x ~ q with min(1, p/q), else draw from the normalised max(p - q, 0): p comes back, for any q.

    Args:
        p: [V], the target's law.
        q: [V], the draft's law.

    Raises:
        ValueError: See `check_laws`.
    """
    check_laws(p, q)
    kept = _kept(p, q)
    residual = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    mass = sum(residual)
    if not mass:
        return kept
    rejected = sum(q) - sum(kept)
    return tuple(k + rejected * r / mass for k, r in zip(kept, residual, strict=True))


def naive_law(p: Sequence[Number], q: Sequence[Number]) -> Law:
    """Keep x ~ q with min(1, p/q), else draw from p itself: drifts towards what both like.

    Args:
        p: [V], the target's law.
        q: [V], the draft's law.

    Raises:
        ValueError: See `check_laws`.
    """
    check_laws(p, q)
    kept = _kept(p, q)
    rejected = sum(q) - sum(kept)
    return tuple(k + rejected * a for k, a in zip(kept, p, strict=True))


def correction(p: Sequence[Number], q: Sequence[Number]) -> tuple[Number, Number, Law | None]:
    """What exact verification of a sampled draft is made of.

    Args:
        p: [V], the target's law.
        q: [V], the draft's law.

    Returns:
        A, the probability that the draft is accepted: the sum of min(p, q). Z, the mass of max(p - q, 0),
        which is 1 - A. The residual law that a rejected draft is replaced from: max(p - q, 0) / Z; None where
        p = q, since nothing is ever rejected.

    Raises:
        ValueError: See `check_laws`.
    """
    check_laws(p, q)
    residual = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    mass = sum(residual)
    return sum(_kept(p, q)), mass, tuple(r / mass for r in residual) if mass else None


def greedy_law(p: Sequence[Number]) -> Law:
    """What strict greedy verification emits: the target's argmax, the first of equals."""
    best = max(range(len(p)), key=lambda token: p[token])
    return tuple(Fraction(token == best) for token in range(len(p)))


def asd_law(
    p: Sequence[Number], q: Sequence[Number], gate: float, at_stake: int = 1, remaining: float = math.inf
) -> Law:
    """Keep x ~ q if it is the argmax or nearly as good, else emit the argmax.

    Args:
        p: [V], the target's law; regret is log p(argmax) - log p(x), in nats.
        q: [V], the draft's law; a greedy drafter's is a single token.
        gate: g, nats per token at stake.
        at_stake: q_i, the draft tokens from this position to the block's end ("remaining" pricing).
        remaining: rho, nats left of the request's budget.

    Raises:
        ValueError: See `check_laws`.
    """
    check_laws(p, q)
    greedy = greedy_law(p)
    relaxable = gate > 0 and remaining > 0
    law: list[Number] = [0] * len(p)
    best = greedy.index(1)
    for token, mass in enumerate(q):
        regret = math.log(p[best] / p[token]) if p[token] else math.inf
        near = relaxable and regret < math.inf and regret / at_stake <= gate and regret <= remaining
        law[token if near else best] += mass
    return tuple(law)


def total_variation(a: Sequence[Number], b: Sequence[Number]) -> Number:
    """Half the summed absolute difference: the most by which any event's probability differs."""
    return sum(max(x, y) - min(x, y) for x, y in zip(a, b, strict=True)) / 2


def check_laws(p: Sequence[Number], q: Sequence[Number]) -> None:
    """Refuse what is no pair of laws.

    Raises:
        ValueError: Different lengths, a negative entry, or a sum that is not 1.
    """
    if len(p) != len(q):
        raise ValueError(f"P has {len(p)} entries and Q has {len(q)}")
    named: dict[str, Sequence[Number]] = {"P": p, "Q": q}
    for name, law in named.items():
        if any(not value >= 0 for value in law):
            raise ValueError(f"{name} has an entry that is no probability")
        if not abs(float(sum(law)) - 1) <= _SUM_TOLERANCE:
            raise ValueError(f"{name} adds up to {float(sum(law)):g}, not to 1")


def _kept(p: Sequence[Number], q: Sequence[Number]) -> Law:
    return tuple(min(a, b) for a, b in zip(p, q, strict=True))
