"""Engine core: the reports of the requests that are there, and what they add to the server's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vllm_asd.config import RequestLimits
from vllm_asd.kernels.outcome import Column
from vllm_asd.telemetry.block_tally import BlockTally
from vllm_asd.telemetry.counters import Counter
from vllm_asd.telemetry.last_block import LastBlock
from vllm_asd.telemetry.request_report import TRACE, TraceEntry, new_report, trace, write_totals
from vllm_asd.telemetry.request_totals import WIDTH, add_blocks, needs_position, new_row
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import StepBlocks

_FIRST_CAPACITY = 64


@dataclass
class _Request:
    """What is not added up.

    Attributes:
        limits: What it runs under.
        sampled: Whether it has a temperature.
        trace: The fields of a TraceEntry for each exception; filled at the metrics level "detailed" alone.
    """

    limits: RequestLimits
    sampled: bool
    trace: list[tuple[float, ...]] = field(default_factory=list)


class OpenReports:
    """Adds up all requests' blocks a step at a time; a report is made when somebody reads it."""

    def __init__(
        self, detailed: bool, counters: StepCounters | None = None, counts_shadow: bool = False
    ) -> None:
        """Start without requests.

        Args:
            detailed: Keep one entry per exception.
            counters: The server's, or None when it runs without statistics.
            counts_shadow: Whether the server itself runs in shadow. On one that enforces, a request that only
                looks kept nothing: its report says what it saw, and the server's counters leave it out.
        """
        self._detailed = detailed
        self._counters = counters
        self._counts_shadow = counts_shadow
        # By request id, the row in the table of totals; by row, the rest.
        self._rows: dict[str, int] = {}
        self._requests: dict[int, _Request] = {}
        self._closed: dict[int, str] = {}
        self._last: dict[str, LastBlock] = {}
        self._totals = np.zeros((_FIRST_CAPACITY, WIDTH))
        self._counted = np.zeros(_FIRST_CAPACITY, dtype=bool)
        self._free = list(range(_FIRST_CAPACITY))

    def open(self, request_id: str, limits: RequestLimits, sampled: bool = False) -> None:
        """Begin a request's report."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._totals[row] = new_row(limits)
        self._counted[row] = self._counts_shadow or limits.is_strict or not limits.shadow
        self._rows[request_id] = row
        self._requests[row] = _Request(limits, sampled)

    def close(self, request_id: str) -> None:
        """Note that a request has ended; its last block may come, its report be read until :meth:`settle`."""
        row = self._rows.get(request_id)
        if row is not None:
            self._closed[row] = request_id

    def located(self, blocks: StepBlocks) -> list[int]:
        """Name the rows for which :meth:`observe` needs to know where in the output they begin."""
        found: list[int] = np.flatnonzero(needs_position(blocks, self._detailed)).tolist()
        return found

    def observe(
        self,
        blocks: StepBlocks,
        positions: np.ndarray,
        kept: Mapping[str, Sequence[int]],
        cuttable: frozenset[str] | set[str] = frozenset(),
    ) -> None:
        """Add the blocks of one step; those that vLLM discarded change nothing.

        Args:
            blocks: What the worker decided.
            positions: [M] int64, output tokens that each request had before the step; needed of those
                that are :meth:`located` or cuttable, else anything.
            kept: By request id the step's tokens that were kept, in order, after stop conditions.
            cuttable: Ids of requests whose block of this step may be cut later; see :meth:`last_block`.
        """
        row_of = self._rows
        # A streaming-input session keeps the report, or none, that its first chunk's parameters gave it.
        rows = np.array([row_of.get(request_id, -1) for request_id in blocks.request_ids], np.int64)
        num_kept = np.array([len(kept.get(request_id, ())) for request_id in blocks.request_ids], np.int64)
        live = np.flatnonzero((rows >= 0) & (num_kept > 0))
        if len(live) < len(rows):
            blocks = blocks.take(live)
            rows, num_kept, positions = rows[live], num_kept[live], positions[live]
        if len(rows):
            self._add(blocks, rows, positions, num_kept, kept, cuttable)

    def _add(
        self,
        blocks: StepBlocks,
        rows: np.ndarray,
        positions: np.ndarray,
        num_kept: np.ndarray,
        kept: Mapping[str, Sequence[int]],
        cuttable: frozenset[str] | set[str],
    ) -> None:
        tally = BlockTally.of(blocks, num_kept)
        totals = self._totals[rows]
        if cuttable:
            self._last = {
                request_id: LastBlock(
                    totals[row].copy(), blocks.take(slice(row, row + 1)), int(positions[row])
                )
                for row, request_id in enumerate(blocks.request_ids)
                if request_id in cuttable
            }
        add_blocks(totals, blocks, tally, positions, num_kept)
        self._totals[rows] = totals
        if self._counters is not None:
            self._counters.add(tally.sums, self._counted[rows])
        if self._detailed and len(tally.exceptions.row):
            self._append_traces(blocks, tally, rows, positions, kept)

    def _append_traces(
        self,
        blocks: StepBlocks,
        tally: BlockTally,
        rows: np.ndarray,
        positions: np.ndarray,
        kept: Mapping[str, Sequence[int]],
    ) -> None:
        row, position, regret = tally.exceptions
        token_ids, target_logprobs = _details(blocks, tally, kept)
        columns = (
            positions[row] + position,
            token_ids,
            blocks.target_ids[row, position],
            regret,
            blocks.column(Column.NUM_DRAFT)[row] - position,
            target_logprobs,
        )
        entries = zip(*(column.tolist() for column in columns), strict=True)
        for at, values in zip(rows[row].tolist(), entries, strict=True):
            self._requests[at].trace.append(values)

    def report(self, request_id: str, first_exception: int = 0) -> dict[str, Any] | None:
        """Make a request's ``asd`` object; nothing changes it afterwards. None for a request without one.

        Args:
            request_id: Of a request that was not settled.
            first_exception: How many exceptions to leave out of the trace, from its first on.
        """
        row = self._rows.get(request_id)
        if row is None:
            return None
        request = self._requests[row]
        report = new_report(request.limits, self._detailed, request.sampled)
        write_totals(report, self._totals[row])
        if self._detailed:
            entries = map(TraceEntry._make, request.trace[first_exception:])
            report[TRACE] = trace(entries, request.sampled)
        return report

    def last_block(self, request_id: str) -> LastBlock | None:
        """What it takes to cut a request's block of this step; None when it had none."""
        return self._last.get(request_id)

    def settle(self) -> None:
        """End a step: count the regret of requests that have ended, and forget them."""
        self._last = {}
        for row, request_id in self._closed.items():
            request = self._requests.pop(row)
            if self._counters is not None and self._counted[row] and not request.limits.is_strict:
                self._counters.end(float(self._totals[row, Counter.REGRET]))
            self._free.append(row)
            # The id may have been given to another request by now.
            if self._rows[request_id] == row:
                del self._rows[request_id]
        self._closed = {}

    def _grow(self) -> None:
        capacity = len(self._totals)
        self._totals = np.concatenate([self._totals, np.zeros_like(self._totals)])
        self._counted = np.concatenate([self._counted, np.zeros_like(self._counted)])
        self._free.extend(range(capacity, 2 * capacity))


def _details(
    blocks: StepBlocks, tally: BlockTally, kept: Mapping[str, Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """[X] the kept token and [X] the target's log-probability of each exception, as far as known."""
    row, position, _ = tally.exceptions
    half = blocks.details.shape[1] // 2
    if half:
        # Its number within the block: those of a row follow each other.
        entry = np.arange(len(row)) - np.searchsorted(row, row)
        return blocks.details[row, entry], blocks.details[row, half + entry]
    is_shadow = blocks.column(Column.SHADOW)
    token_ids = [
        -1 if is_shadow[index] else kept[blocks.request_ids[index]][place]
        for index, place in zip(row.tolist(), position.tolist(), strict=True)
    ]
    return np.array(token_ids, np.float64), np.full(len(row), np.nan)
