"""Put acceptance and costs together: the table by draft length, the best of it, and the verdict in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_asd.tools.plan import words
from vllm_asd.tools.plan.acceptance import Number, acceptance_of_mean, check_joint, expected_tokens, extend
from vllm_asd.tools.plan.curve import Curve
from vllm_asd.tools.plan.speed import (
    MAX_K,
    Costs,
    break_even_concurrency,
    break_even_draft_cost,
    ms_per_token,
    speedup,
)

SCHEMA = "vllm-asd/plan/1"
_LINE_STEPS = 64


@dataclass(frozen=True)
class Arm:
    """One verification rule's acceptance.

    Attributes:
        name: "strict" or "ASD".
        acceptance: One independent rate, or joint acceptance by position.
        source: Where it comes from.
    """

    name: str
    acceptance: Number | Sequence[Number]
    source: str = "given"

    @property
    def measured_k(self) -> int | None:
        """Positions with a known joint acceptance; None where independence is assumed throughout."""
        return len(self.acceptance) if isinstance(self.acceptance, Sequence) else None

    @property
    def independent(self) -> float:
        """The independent rate that yields the same mean."""
        if not isinstance(self.acceptance, Sequence):
            return float(self.acceptance)
        joint = check_joint(self.acceptance)
        return acceptance_of_mean(float(sum(joint)), len(joint))


@dataclass(frozen=True)
class Row:
    """One draft length of one arm; costs in plain decode steps.

    Attributes:
        k: Draft tokens per round.
        expected_tokens: Tokens per round.
        speedup: Against plain decoding.
        independent_expected_tokens: The same under independence, from the arm's mean.
        independent_speedup: The speed-up that goes with it.
        break_even_draft_cost: The draft cost at which the speed-up is 1.
        ms_per_token: None without a baseline in ms.
        extrapolated: Beyond the measured positions.
    """

    k: int
    expected_tokens: float
    speedup: float
    independent_expected_tokens: float
    independent_speedup: float
    break_even_draft_cost: float
    ms_per_token: float | None
    extrapolated: bool


@dataclass(frozen=True)
class Load:
    """Speed-up by concurrency at one draft length.

    Attributes:
        k: That draft length.
        speedups: By measured concurrency.
        line: (concurrency, speed-up) from the first to the last of them, with the cost interpolated.
        break_even: Concurrency from which it loses; 0 from the first on, infinity at none of them.
    """

    k: int
    speedups: dict[float, float]
    line: tuple[tuple[float, float], ...]
    break_even: float


@dataclass(frozen=True)
class ArmPlan:
    """One arm's table and what follows from it."""

    arm: Arm
    rows: tuple[Row, ...]
    best: Row
    verdict: str
    load: Load | None

    def as_json(self) -> dict[str, Any]:
        """Plain values; an infinite break-even is null."""
        found: dict[str, Any] = {
            "source": self.arm.source,
            "measured_k": self.arm.measured_k,
            "independent_acceptance": self.arm.independent,
            "best_k": self.best.k,
            "best_speedup": self.best.speedup,
            "loses": self.best.speedup <= 1,
            "verdict": self.verdict,
            "rows": [asdict(row) for row in self.rows],
        }
        if self.load is not None:
            found["concurrency"] = {
                "k": self.load.k,
                "speedup": {f"{users:g}": value for users, value in self.load.speedups.items()},
                "break_even": self.load.break_even if math.isfinite(self.load.break_even) else None,
                "verdict": words.load_verdict(self.load),
            }
        return found


def plan_arm(
    arm: Arm,
    costs: Costs,
    baseline_ms: float | None = None,
    by_concurrency: Curve | None = None,
    k: int = 1,
    verification_assumed: bool = False,
) -> ArmPlan:
    """Work one arm out for k = 1 ... 16.

    Args:
        arm: Its acceptance.
        costs: Of a round.
        baseline_ms: One plain decode step, for milliseconds per token.
        by_concurrency: g by concurrency, in plain decode steps at that concurrency.
        k: The draft length that `by_concurrency` was measured at.
        verification_assumed: Nobody gave a verification cost: the verdict says so beside its speed-up.

    Raises:
        ValueError: From `expected_tokens`, or `k` beyond the table.
    """
    joint = arm.acceptance
    if isinstance(joint, Sequence):
        joint = extend(joint, MAX_K)
    rows = tuple(_row(arm, joint, length, costs, baseline_ms) for length in range(1, MAX_K + 1))
    best = max(rows, key=lambda row: (row.speedup, -row.k))
    load = None
    if by_concurrency is not None:
        if not 1 <= k <= MAX_K:
            raise ValueError(f"k is {k}, the table goes from 1 to {MAX_K}")
        load = _load(rows[k - 1], costs, by_concurrency)
    return ArmPlan(arm, rows, best, words.verdict(arm.name, rows, best, costs, verification_assumed), load)


def _row(
    arm: Arm, acceptance: Number | Sequence[Number], k: int, costs: Costs, baseline_ms: float | None
) -> Row:
    expected = expected_tokens(acceptance, k)
    independent = expected_tokens(arm.independent, k)
    return Row(
        k=k,
        expected_tokens=float(expected),
        speedup=float(speedup(expected, k, costs)),
        independent_expected_tokens=float(independent),
        independent_speedup=float(speedup(independent, k, costs)),
        break_even_draft_cost=float(break_even_draft_cost(expected, k, costs)),
        ms_per_token=None if baseline_ms is None else float(ms_per_token(expected, k, costs, baseline_ms)),
        extrapolated=arm.measured_k is not None and k > arm.measured_k,
    )


def _load(row: Row, costs: Costs, by_concurrency: Curve) -> Load:
    def at(users: float) -> float:
        there = Costs(costs.draft, by_concurrency(users), costs.overhead)
        return float(speedup(row.expected_tokens, row.k, there))

    measured = [users for users, _ in by_concurrency.points]
    ratio = measured[-1] / measured[0]
    between = [measured[0] * ratio ** (step / _LINE_STEPS) for step in range(_LINE_STEPS + 1)]
    return Load(
        row.k,
        {users: at(users) for users in measured},
        tuple((users, at(users)) for users in sorted({*measured, *between})),
        break_even_concurrency(row.expected_tokens, row.k, costs, by_concurrency),
    )
