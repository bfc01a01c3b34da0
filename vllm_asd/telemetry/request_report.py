"""What one request's relaxations came to: the ``asd`` object of its response, plain JSON values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from vllm_asd.config import RequestLimits
from vllm_asd.telemetry.block_tally import FIRST_STOP, NUM_SUMS, STOP_LABELS
from vllm_asd.telemetry.counters import REPORTED, Counter
from vllm_asd.telemetry.request_totals import (
    ANSWER,
    NEVER,
    REASONING,
    Account,
    Total,
    account_column,
    new_row,
)

PHASES = {"reasoning": REASONING, "answer": ANSWER}
TRACE = "exception_trace"


class TraceEntry(NamedTuple):
    """One exception that is in the answer, for the metrics level "detailed".

    Attributes:
        position: In the output, from 0.
        token_id: The kept token; -1 when not known.
        target_id: What the target would have emitted.
        regret: Nats.
        at_stake: Draft tokens from there to the end of the block.
        target_logprob: The target's log-probability of its own token, in nats; NaN when not known.
    """

    position: float
    token_id: float
    target_id: float
    regret: float
    at_stake: float
    target_logprob: float


def new_report(limits: RequestLimits, detailed: bool, sampled: bool = False) -> dict[str, Any]:
    """The object of a request without a block.

    Only what reached the response counts as relaxed. Under shadow the figures are what would have been kept.
    A request with limits of its own for the answer has ``phases`` too; a block counts where it began.

    Args:
        limits: What the request runs under.
        detailed: With an empty list for the exceptions.
        sampled: Its temperature is above 0: what is called the target's token was drawn, not the best.
    """
    report = {
        "mode": "strict" if limits.is_strict else "shadow" if limits.shadow else "enforce",
        **_amounts(limits),
        "sampled": sampled,
        # In its place; see write_totals.
        **_totals(new_row(limits).tolist()),
        "guard": "on" if limits.guard else "off",
        "guarded_at_token": None,
    }
    if limits.answer is not None:
        report["phases"] = {"reasoning": _phase(limits), "answer": _phase(limits.answer)}
    if detailed:
        report[TRACE] = []
    return report


def write_totals(report: dict[str, Any], row: np.ndarray) -> None:
    """Set a report's figures to what a row of :mod:`request_totals` says.

    Args:
        report: From :func:`new_report`, for the same request.
        row: [WIDTH] float64.
    """
    values = row.tolist()
    report |= _totals(values)
    report["guarded_at_token"] = _position(values[Total.GUARDED_AT])
    for name, phase in report.get("phases", {}).items():
        phase["regret_spent"] = values[account_column(PHASES[name], Account.SPENT)]
        phase["exceptions"] = int(values[account_column(PHASES[name], Account.EXCEPTIONS)])
        phase["exhausted_at_token"] = _position(values[account_column(PHASES[name], Account.EXHAUSTED_AT)])


def trace(entries: Iterable[TraceEntry], sampled: bool) -> list[dict[str, Any]]:
    """The list of exceptions as the response has it."""
    return [_entry(entry, sampled) for entry in entries]


def _totals(values: list[float]) -> dict[str, Any]:
    stops = {label: int(n) for label, n in zip(STOP_LABELS, values[FIRST_STOP:NUM_SUMS], strict=True)}
    blocks = sum(stops.values())
    accepted, strict = int(values[Counter.ACCEPTED_TOKENS]), int(values[Counter.STRICT_ACCEPTED_TOKENS])
    return {
        "regret_spent": sum(values[account_column(a, Account.SPENT)] for a in (REASONING, ANSWER)),
        **{counter.label: counter.of(values[counter]) for counter in REPORTED},
        "verified_blocks": blocks,
        "strict_blocks_estimate": _strict_blocks(blocks, accepted, strict),
        "blocks_by_stop": stops,
        "exhausted_at_token": _position(values[Total.EXHAUSTED_AT]),
    }


def _strict_blocks(blocks: int, accepted: int, strict_accepted: int) -> float:
    """Blocks that strict verification would have needed for as many tokens, at its mean in these blocks.

    An estimate: after the first exception strict would have decoded another text.
    """
    return float(blocks * (accepted + blocks) / (strict_accepted + blocks)) if blocks else 0.0


def _position(value: float) -> int | None:
    return None if value == NEVER else int(value)


def _phase(limits: RequestLimits) -> dict[str, Any]:
    return {**_amounts(limits), "regret_spent": 0.0, "exceptions": 0, "exhausted_at_token": None}


def _amounts(limits: RequestLimits) -> dict[str, Any]:
    return {
        "budget": limits.budget,
        "gate": limits.gate,
        "block_cap": limits.block_cap,
        "refill": limits.refill,
    }


def _entry(entry: TraceEntry, sampled: bool) -> dict[str, Any]:
    # Read off the logits of the decision, which a sampled request's carry noise in.
    is_known = not sampled and entry.target_logprob == entry.target_logprob
    return {
        "position": int(entry.position),
        "token_id": None if entry.token_id < 0 else int(entry.token_id),
        "target_token_id": int(entry.target_id),
        "regret": entry.regret,
        "at_stake": int(entry.at_stake),
        "logprob": entry.target_logprob - entry.regret if is_known else None,
        "target_logprob": entry.target_logprob if is_known else None,
    }
