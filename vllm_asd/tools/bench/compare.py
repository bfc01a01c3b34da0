"""Who is faster than whom, what got worse on the way, and how far the machine drifted meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vllm_asd.tools.bench.cells import ASD, STRICT
from vllm_asd.tools.bench.results import METRICS, THROUGHPUT, Metric, Record, Results, Spread

# A change below this is not worth a word, however steady.
_SMALLEST = 0.01


@dataclass(frozen=True)
class Change:
    """One figure of one arm against another.

    Attributes:
        server: Of the arm.
        arm: Which one.
        against: "strict" or "none".
        concurrency: Of both.
        metric: Its title.
        ratio: By triplet against strict, by repeat against none's median.
        noise: The largest change from one of the control's repeats to the next; None with a single one.
        verdict: "better", "worse", "no clear change", or "not judged" without a known noise.
    """

    server: str
    arm: str
    against: str
    concurrency: int
    metric: str
    ratio: Spread
    noise: float | None
    verdict: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "ratio": self.ratio.as_json()}


def against_plain(results: Results, server: str, arm: str, concurrency: int) -> Spread | None:
    """Speed-up over no speculation, by repeat; None where one of them is not measured."""
    plain, records = results.plain(concurrency), results.of(server, arm, concurrency)
    if not plain or not records:
        return None
    base = Spread(tuple(map(THROUGHPUT.of, plain))).median
    return Spread(tuple(THROUGHPUT.of(record) / base for record in records))


def against_strict(results: Results, server: str, arm: str, concurrency: int) -> Spread | None:
    """Speed-up over strict on the same server, by triplet; None without a whole triplet."""
    ratios = tuple(triplet.ratio(THROUGHPUT) for triplet in results.triplets(server, arm, concurrency))
    return Spread(ratios) if ratios else None


def changes(results: Results) -> list[Change]:
    """Every figure: ASD against strict, strict and ASD against none."""
    found: list[Change] = []
    for server in results.speculating:
        for concurrency in results.concurrency:
            for metric in METRICS:
                found += _against_strict(results, server, concurrency, metric)
                for arm in (STRICT, ASD):
                    found += _against_plain(results, server, arm, concurrency, metric)
    return found


def drift(results: Results) -> dict[str, dict[str, float]]:
    """Throughput of the last control over the first, by server and concurrency."""
    found: dict[str, dict[str, float]] = {}
    for server, arm in [("none", "none"), *((name, STRICT) for name in results.speculating)]:
        for concurrency in results.concurrency:
            records = results.of(server, arm, concurrency)
            if len(records) > 1:
                change = THROUGHPUT.of(records[-1]) / THROUGHPUT.of(records[0])
                found.setdefault(server, {})[str(concurrency)] = change
    return found


def verdict(metric: Metric, ratio: Spread, noise: float | None) -> str:
    """Judge a change by the control's own: it has to be larger, and all repeats on one side."""
    if noise is None:
        return "not judged"
    change = ratio.median - 1
    one_side = all((value > 1) == (change > 0) for value in ratio.values)
    if abs(change) <= max(noise, _SMALLEST) or not one_side:
        return "no clear change"
    return "better" if (change > 0) == metric.higher_is_better else "worse"


def own_change(metric: Metric, controls: Sequence[Record]) -> float | None:
    """The largest relative change from one repeat of a control to the next; None if there is but one."""
    values = [metric.of(record) for record in controls]
    return max((abs(after / before - 1) for before, after in pairwise(values)), default=None)


def _against_strict(results: Results, server: str, concurrency: int, metric: Metric) -> list[Change]:
    ratios = tuple(triplet.ratio(metric) for triplet in results.triplets(server, ASD, concurrency))
    if not ratios:
        return []
    noise = own_change(metric, results.of(server, STRICT, concurrency))
    ratio = Spread(ratios)
    judged = verdict(metric, ratio, noise)
    return [Change(server, ASD, STRICT, concurrency, metric.title, ratio, noise, judged)]


def _against_plain(results: Results, server: str, arm: str, concurrency: int, metric: Metric) -> list[Change]:
    plain, records = results.plain(concurrency), results.of(server, arm, concurrency)
    if not plain or not records:
        return []
    base = Spread(tuple(map(metric.of, plain))).median
    ratio = Spread(tuple(metric.of(record) / base for record in records))
    noise = own_change(metric, plain)
    return [
        Change(server, arm, "none", concurrency, metric.title, ratio, noise, verdict(metric, ratio, noise))
    ]
