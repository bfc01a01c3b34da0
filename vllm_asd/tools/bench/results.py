"""Finished cells and the questions a comparison asks of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vllm_asd.tools.bench.cells import FLY, NONE, STRICT, Cell, Work

Record = Mapping[str, Any]


class Metric(NamedTuple):
    """One figure of a cell.

    Attributes:
        title: What a reader calls it.
        path: Where it stands in the record.
        higher_is_better: Else lower is.
    """

    title: str
    path: tuple[str, ...]
    higher_is_better: bool = False

    def of(self, record: Record) -> float:
        """Read it."""
        value: Any = record
        for key in self.path:
            value = value[key]
        return float(value)


THROUGHPUT = Metric("output tokens/s", ("output_throughput",), higher_is_better=True)
METRICS = (
    THROUGHPUT,
    *(Metric(f"TTFT {p}", ("latency_ms", "ttft", p)) for p in ("p50", "p95", "p99")),
    *(Metric(f"TPOT {p}", ("latency_ms", "tpot", p)) for p in ("p50", "p95", "p99")),
    *(Metric(f"ITL {p}", ("latency_ms", "itl", p)) for p in ("p50", "p99")),
    *(Metric(f"end to end {p}", ("latency_ms", "e2e", p)) for p in ("p50", "p95", "p99")),
    Metric("peak memory", ("memory_mib", "resident")),
)


@dataclass(frozen=True)
class Spread:
    """Repeated values of one thing."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Middle."""
        return float(np.median(self.values))

    def as_json(self) -> dict[str, Any]:
        """Median, range, quartiles and the values themselves."""
        q1, q3 = np.quantile(self.values, (0.25, 0.75))
        return {
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "q1": float(q1),
            "q3": float(q3),
            "values": list(self.values),
        }

    def __str__(self) -> str:
        """As in `1.23 (1.20-1.26)`, or the one value."""
        if len(self.values) == 1:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({min(self.values):.2f}-{max(self.values):.2f})"


class Results:
    """All finished cells of a run."""

    def __init__(self, cells: Mapping[Cell, Record]) -> None:
        """Hold them."""
        self._cells = cells

    @property
    def concurrency(self) -> list[int]:
        """Levels with fixed work, rising."""
        return sorted({cell.concurrency for cell in self._cells if cell.work == "fixed"})

    @property
    def speculating(self) -> list[str]:
        """Servers with ASD, in the run's order."""
        return list(dict.fromkeys(cell.server for cell in self._cells if cell.arm == STRICT))

    def arms(self, server: str) -> list[str]:
        """The arms of a server in the run's order, vLLM's fly included."""
        found = [cell.arm for cell in self._cells if cell.server in (server, f"{server}-{FLY}")]
        return list(dict.fromkeys(found))

    def of(self, server: str, arm: str, concurrency: int, work: Work = "fixed") -> list[Record]:
        """Records by rising repeat."""
        name = f"{server}-{FLY}" if arm == FLY else server
        wanted = (name, arm, concurrency, work)
        cells = (
            cell for cell in self._cells if (cell.server, cell.arm, cell.concurrency, cell.work) == wanted
        )
        return [self._cells[cell] for cell in sorted(cells)]

    def plain(self, concurrency: int, work: Work = "fixed") -> list[Record]:
        """Records of the server without speculation."""
        return self.of(NONE, NONE, concurrency, work)

    def triplets(self, server: str, arm: str, concurrency: int, work: Work = "fixed") -> "list[Triplet]":
        """Each record of an arm between the strict ones before and after it; half a triplet is left out."""
        stricts = self._by_repeat(server, STRICT, concurrency, work)
        measured = self._by_repeat(server, arm, concurrency, work)
        return [
            Triplet(stricts[repeat], record, stricts[repeat + 1])
            for repeat, record in measured.items()
            if repeat in stricts and repeat + 1 in stricts
        ]

    def _by_repeat(self, server: str, arm: str, concurrency: int, work: Work) -> dict[int, Record]:
        wanted = (server, arm, concurrency, work)
        cells = (
            cell for cell in self._cells if (cell.server, cell.arm, cell.concurrency, cell.work) == wanted
        )
        return {cell.repeat: self._cells[cell] for cell in sorted(cells)}


class Triplet(NamedTuple):
    """One measurement between two of the control."""

    before: Record
    measured: Record
    after: Record

    def ratio(self, metric: Metric) -> float:
        """The measurement over the mean of its two controls."""
        control = (metric.of(self.before) + metric.of(self.after)) / 2
        return metric.of(self.measured) / control


def pooled(records: Iterable[Record], name: str) -> np.ndarray[Any, Any]:
    """Every request's value of `ttft_ms`, `tpot_ms`, `e2e_ms` or `output_lengths`, over all repeats."""
    return np.array([value for record in records for value in record[name]], dtype=float)


def summed(records: Sequence[Record], *path: str) -> float:
    """A counter's sum over repeats."""
    total = 0.0
    for record in records:
        value: Any = record
        for key in path:
            value = value[key]
        total += float(value)
    return total
