"""Steps as the worker reports them, without a worker: by hand and at random."""

from collections.abc import Mapping, Sequence

import numpy as np

from vllm_asd.kernels.outcome import Column
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.step_report import StepBlocks


def make_blocks(
    ids: Sequence[str],
    exceptions: Sequence[Mapping[int, float]],
    num_draft: int = 7,
    accepted: int = 5,
    details: int = 0,
    width: int | None = None,
    **columns: float,
) -> StepBlocks:
    """Blocks that differ in their exceptions alone; the target's token at position p is 90 + p.

    Args:
        ids: Of the requests.
        exceptions: For each, the regret by position.
        num_draft: Draft tokens of each.
        accepted: Tokens kept of each.
        details: E; the kept token at position p is then 70 + p, the target's log-probability -1 - p.
        width: K; as many as there are drafts if not given.
        columns: The other scalars, by their lower-case name.
    """
    width = num_draft if width is None else width
    table = np.zeros((len(ids), len(Column) + 2 * width + 2 * details))
    table[:, Column.THINKING] = -1
    table[:, Column.STOP] = StopReason.GATE
    blocks = StepBlocks(list(ids), table, width)
    blocks.exception_regret[:] = -1
    blocks.target_ids[:] = -1
    blocks.column(Column.NUM_DRAFT)[:] = num_draft
    blocks.column(Column.ACCEPTED)[:] = accepted
    for row, found in enumerate(exceptions):
        for entry, (position, regret) in enumerate(sorted(found.items())):
            blocks.exception_regret[row, position] = regret
            blocks.target_ids[row, position] = 90 + position
            if details:
                blocks.details[row, [entry, details + entry]] = 70 + position, -1.0 - position
        strict = min(found, default=accepted)
        table[row, Column.STRICT_ACCEPTED] = strict
        table[row, Column.EXCEPTIONS] = len(found)
        table[row, Column.REUSED] = accepted - strict - len(found) if found else 0
        table[row, [Column.CHARGED, Column.SPENT]] = sum(found.values())
    for name, value in columns.items():
        blocks.column(Column[name.upper()])[:] = value
    return blocks
