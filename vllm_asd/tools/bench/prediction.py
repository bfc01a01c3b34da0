"""The planner's prediction beside what was measured, and where the difference comes from.

Predicted from acceptance by position and the mean time between a request's chunks (ITL), of the plain server
and of strict: speed-up = tokens per round * plain ITL / strict ITL. That is a model of decoding alone. The
measured ratio of throughputs differs from it by exactly four factors, each of which is measured as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_asd.tools.bench.acceptance import acceptance
from vllm_asd.tools.bench.cells import ASD, STRICT
from vllm_asd.tools.bench.results import Record, Results, pooled, summed
from vllm_asd.tools.plan.curve import Curve
from vllm_asd.tools.plan.plan import Arm, plan_arm
from vllm_asd.tools.plan.speed import Costs

_WORDS = {
    "first_tokens": "from the time to first tokens, which a model of decoding leaves out",
    "seats": "from the requests under way on average (a batch empties as its requests end)",
    "round_time": "from its rounds, which do not take the time of strict's",
    "cut_blocks": "from last blocks that the length limit cuts",
}
_WORTH_A_WORD = 0.02


@dataclass(frozen=True)
class Timing:
    """Where the time of an arm's requests went.

    Attributes:
        ttft_ms: Mean time to the first token.
        decode_ms: Mean time from the first to the last token.
        itl_ms: Mean time between two chunks: one round.
        chunk_tokens: Tokens per chunk behind the first.
        seats: Requests under way on average.
    """

    ttft_ms: float
    decode_ms: float
    itl_ms: float
    chunk_tokens: float
    seats: float


@dataclass(frozen=True)
class Prediction:
    """One arm at one concurrency.

    Attributes:
        server: Of the arm.
        arm: "strict" or "asd".
        concurrency: Requests at a time.
        tokens_per_round: Measured.
        round_cost: A strict round in plain decode steps.
        predicted: Speed-up.
        measured: Speed-up, all repeats together.
        factors: What measured / predicted is the product of.
    """

    server: str
    arm: str
    concurrency: int
    tokens_per_round: float
    round_cost: float
    predicted: float
    measured: float
    factors: dict[str, float]

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "error": self.error, "explanation": self.explanation}

    @property
    def explanation(self) -> str:
        """One sentence."""
        large = {name: f for name, f in self.factors.items() if abs(f - 1) >= _WORTH_A_WORD}
        where = f"{self.server}, {self.arm}, {self.concurrency} at a time"
        start = f"{where}: predicted {self.predicted:.2f}, measured {self.measured:.2f}"
        if not large:
            return f"{start}; no single cause above {_WORTH_A_WORD:.0%}."
        ordered = sorted(large.items(), key=lambda item: -abs(item[1] - 1))
        return f"{start}; " + ", ".join(f"x{f:.2f} {_WORDS[name]}" for name, f in ordered) + "."


def predictions(results: Results, draft_costs: dict[str, float]) -> list[Prediction]:
    """Predict strict and ASD at every concurrency that was measured for them and the plain server.

    Args:
        results: Of the run.
        draft_costs: By server: one draft token in plain decode steps, from the profile; 0 where unknown, and
            then it is part of the verification's cost.
    """
    found: list[Prediction] = []
    for server in results.speculating:
        levels = [c for c in results.concurrency if results.plain(c) and results.of(server, STRICT, c)]
        if not levels:
            continue
        plain = {c: timing(results.plain(c)) for c in levels}
        strict = {c: timing(results.of(server, STRICT, c)) for c in levels}
        rounds = {c: strict[c].itl_ms / plain[c].itl_ms for c in levels}
        for arm in (STRICT, ASD):
            for concurrency in levels:
                found += _predict(results, (server, arm, concurrency), plain, strict, rounds, draft_costs)
    return found


def timing(records: Sequence[Record]) -> Timing:
    """Measure it over all repeats."""
    ttft, e2e = pooled(records, "ttft_ms"), pooled(records, "e2e_ms")
    lengths = pooled(records, "output_lengths")
    itl_ms = float(np.average([r["latency_ms"]["itl"]["mean"] for r in records], weights=_chunks(records)))
    decode_ms = float((e2e - ttft).mean())
    return Timing(
        ttft_ms=float(ttft.mean()),
        decode_ms=decode_ms,
        itl_ms=itl_ms,
        chunk_tokens=float((lengths - 1).mean()) * itl_ms / decode_ms,
        seats=float(e2e.sum()) / (1e3 * summed(records, "duration_s")),
    )


def _chunks(records: Sequence[Record]) -> list[float]:
    """Gaps between chunks of each record: what was waited, by the mean gap."""
    waited = [float((pooled([r], "e2e_ms") - pooled([r], "ttft_ms")).sum()) for r in records]
    return [sum_ms / r["latency_ms"]["itl"]["mean"] for sum_ms, r in zip(waited, records, strict=True)]


def _throughput(records: Sequence[Record]) -> float:
    return summed(records, "output_tokens") / summed(records, "duration_s")


def _predict(
    results: Results,
    where: tuple[str, str, int],
    plain: dict[int, Timing],
    strict: dict[int, Timing],
    rounds: dict[int, float],
    draft_costs: dict[str, float],
) -> list[Prediction]:
    server, arm, concurrency = where
    records = results.of(*where)
    accepted = acceptance(records)
    if accepted is None:
        return []
    k = len(accepted.by_position)
    # What the drafter costs beyond its place in the round's whole time can't be told apart from outside.
    draft = min(draft_costs.get(server, 0.0), 0.9 * min(rounds.values()) / k)
    verify = Curve.through({float(c): cost - k * draft for c, cost in rounds.items()})
    plan = plan_arm(Arm(arm, accepted.by_position), Costs(draft), plain[concurrency].itl_ms, verify, k)
    assert plan.load is not None
    own = timing(records)
    base = plain[concurrency]
    e2e_own, e2e_base = own.ttft_ms + own.decode_ms, base.ttft_ms + base.decode_ms
    factors = {
        "first_tokens": (e2e_base / e2e_own) / (base.decode_ms / own.decode_ms),
        "seats": own.seats / base.seats,
        "round_time": strict[concurrency].itl_ms / own.itl_ms,
        "cut_blocks": own.chunk_tokens / base.chunk_tokens / accepted.tokens_per_round,
    }
    return [
        Prediction(
            server,
            arm,
            concurrency,
            accepted.tokens_per_round,
            rounds[concurrency],
            plan.load.speedups[float(concurrency)],
            _throughput(records) / _throughput(results.plain(concurrency)),
            factors,
        )
    ]
