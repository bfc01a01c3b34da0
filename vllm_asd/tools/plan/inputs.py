"""The planner's inputs as text: what an option may hold, and one message per mistake."""

from __future__ import annotations

import re
from fractions import Fraction

from vllm_asd.tools.plan.curve import Curve, parse_curve
from vllm_asd.tools.plan.speed import Costs

_MOST_DIGITS = 300


def read_costs(
    baseline_ms: float | None,
    in_steps: tuple[float | None, str | None, float | None],
    in_ms: tuple[float | None, str | None, float | None],
) -> Costs:
    """Read (draft, verify, overhead) in one of the two units.

    Raises:
        ValueError: Both units, no draft cost, or milliseconds without a baseline.
    """
    if any(value is not None for value in in_ms):
        if any(value is not None for value in in_steps):
            raise ValueError("give costs in decode steps or in ms, not both")
        if baseline_ms is None:
            raise ValueError("times in ms need --baseline-ms, one plain decode step")
        draft, verify, overhead = in_ms
        if draft is None:
            raise ValueError("give --draft-ms, the time of one draft token")
        return Costs.from_ms(
            baseline_ms, draft, parse_curve(verify) if verify else baseline_ms, overhead or 0.0
        )
    draft, verify, overhead = in_steps
    if draft is None:
        raise ValueError(
            "give --draft-cost (one draft token in plain decode steps; /metrics does not tell it)"
        )
    if baseline_ms is not None and not 0 < baseline_ms < float("inf"):
        raise ValueError("--baseline-ms must be above 0")
    return Costs(draft, parse_curve(verify) if verify else 1.0, overhead or 0.0)


def read_loads(text: str | None) -> Curve | None:
    """Read verification cost by concurrency.

    Raises:
        ValueError: No N=COST pairs.
    """
    if text is None:
        return None
    curve = parse_curve(text)
    if not isinstance(curve, Curve):
        raise ValueError("--verify-by-concurrency wants N=COST,N=COST,...")
    return curve


def read_acceptance(text: str) -> float | tuple[float, ...]:
    """Read one independent rate, or joint acceptance by position.

    Raises:
        ValueError: Neither.
    """
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"an acceptance is a number or numbers with commas between, got {text!r}") from None
    return values if len(values) > 1 else values[0]


def read_law(name: str, text: str) -> tuple[Fraction, ...]:
    """Read probabilities as they are written, without rounding.

    Raises:
        ValueError: No list of numbers; the message says `name`.
    """
    try:
        parts = text.split(",")
        # An exact 1e-999999 would have a million digits.
        if any(abs(int(exponent)) > _MOST_DIGITS for exponent in re.findall(r"[eE]([-+]?\d+)", text)):
            raise ValueError("too small or large")
        return tuple(Fraction(part) for part in parts)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{name} is a list like 0.5,0.3,0.2, got {text!r}") from None
