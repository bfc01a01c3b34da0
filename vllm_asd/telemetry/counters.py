"""The table of counters: what is added up over a request's draft blocks and over the server's.

One row makes a counter: its sum (per request and per step), its metric ``vllm_asd:<label>_total``, its field
of the request's report, its part of the log line, its place in bench's records and its line in
docs/report.md. What is left to write is where it is measured, :mod:`vllm_asd.telemetry.block_tally`.
Imports no torch.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, Self

Unit = Literal["tokens", "nats", "requests"]


class Counter(IntEnum):
    """A row of the table; its value is its column in every array of sums.

    Attributes:
        label: Its name outside of Python.
        unit: What is counted. Those of requests count each once, and are no field of its report.
        text: What it says.
        log: Its part of the log line, where ``{}`` stands for the number; empty for none of its own.
    """

    label: str
    unit: Unit
    text: str
    log: str

    def __new__(cls, unit: Unit, text: str, log: str = "") -> Self:
        """Number the rows from 0."""
        column = len(cls.__members__)
        row = int.__new__(cls, column)
        row._value_ = column
        row.unit, row.text, row.log = unit, text, log
        return row

    def __init__(self, *_: str) -> None:
        """Label the row."""
        self.label = self.name.lower()

    EXCEPTIONS = "tokens", "Kept draft tokens that are not the target's argmax.", "Exceptions: {}"
    REGRET = "nats", "Summed logit regret of the kept exceptions, in nats.", "Regret: {:.2f} nats"
    REUSED_TOKENS = (
        "tokens",
        "Kept draft tokens behind an exception that are the target's argmax.",
        "Reused: {} tokens",
    )
    ACCEPTED_TOKENS = "tokens", "Draft tokens kept in the blocks that ASD decided."
    STRICT_ACCEPTED_TOKENS = "tokens", "Draft tokens that strict verification keeps of those same blocks."
    EXHAUSTED_REQUESTS = (
        "requests",
        "Requests in which the budget refused a token that gate and cap would have kept.",
        "Exhausted requests: {}",
    )
    GUARDED_REQUESTS = (
        "requests",
        "Requests that turned strict because their answer looped or exceptions clustered.",
    )

    def of(self, value: float) -> float:
        """A sum as a plain number: nats stay a float, the rest are counts."""
        return float(value) if self.unit == "nats" else int(value)


REPORTED = tuple(counter for counter in Counter if counter.unit != "requests")
