"""A request's last block, so that the front end can cut it where it finds a stop string.

The engine core reports whole blocks. A stop string is found afterwards, and the client gets the block's
tokens up to its end alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vllm_asd.telemetry.block_tally import BlockTally
from vllm_asd.telemetry.request_report import TRACE, write_totals
from vllm_asd.telemetry.request_totals import add_blocks
from vllm_asd.telemetry.step_report import StepBlocks


class LastBlock(NamedTuple):
    """What a report was made of.

    Attributes:
        totals: [WIDTH] float64, the request before the block.
        block: The block alone, one row.
        position: Output tokens before the block.
    """

    totals: np.ndarray
    block: StepBlocks
    position: int

    def pack(self) -> list[Any]:
        """As plain values, for a message."""
        return [self.totals.tolist(), self.block.table[0].tolist(), self.block.width, self.position]

    @classmethod
    def unpack(cls, packed: list[Any]) -> LastBlock:
        """Read what :meth:`pack` wrote."""
        totals, table, width, position = packed
        return cls(np.array(totals), StepBlocks([""], np.array([table]), width), position)

    def cut(self, report: dict[str, Any], num_kept: int) -> dict[str, Any]:
        """Make the report of an answer that ends inside the block.

        Args:
            report: The one with the whole block, its list of exceptions complete. Not changed.
            num_kept: Tokens of the block that the client gets; at least 1.
        """
        totals, kept = self.totals[np.newaxis].copy(), np.array([num_kept])
        add_blocks(totals, self.block, BlockTally.of(self.block, kept), np.array([self.position]), kept)
        result = dict(report)
        if "phases" in report:
            result["phases"] = {name: dict(phase) for name, phase in report["phases"].items()}
        write_totals(result, totals[0])
        if TRACE in report:
            result[TRACE] = report[TRACE][: result["exceptions"]]
        return result
