"""A step's report, read row by row: what the tests compare."""

from typing import NamedTuple

from vllm_asd.kernels import Column
from vllm_asd.telemetry.step_report import StepBlocks


class Block(NamedTuple):
    """One request's block; see :class:`vllm_asd.kernels.Column`.

    Attributes:
        exceptions: Position, vLLM's argmax and regret of each.
        details: Kept token and log-probability of the argmax of each; empty unless the level is "detailed".
    """

    num_draft: int
    accepted: int
    strict_accepted: int
    reused: int
    stop: int
    charged: float
    spent: float
    shadow: bool
    thinking: int
    guard: int
    exceptions: tuple[tuple[int, int, float], ...]
    details: tuple[tuple[int, float], ...]


def by_request(blocks: StepBlocks | None) -> dict[str, Block]:
    """Read a report; none is an empty one."""
    if blocks is None:
        return {}
    return {request_id: _read(blocks, row) for row, request_id in enumerate(blocks.request_ids)}


def _read(blocks: StepBlocks, row: int) -> Block:
    def number(column: Column) -> float:
        return float(blocks.column(column)[row])

    regrets, targets = blocks.exception_regret[row].tolist(), blocks.target_ids[row].tolist()
    exceptions = tuple(
        (position, int(targets[position]), regret) for position, regret in enumerate(regrets) if regret >= 0
    )
    assert len(exceptions) == number(Column.EXCEPTIONS)
    assert [target for regret, target in zip(regrets, targets, strict=True) if regret < 0] == [-1.0] * (
        blocks.width - len(exceptions)
    )
    details = blocks.details[row].tolist()
    tokens, logprobs = details[: len(details) // 2], details[len(details) // 2 :]
    return Block(
        num_draft=int(number(Column.NUM_DRAFT)),
        accepted=int(number(Column.ACCEPTED)),
        strict_accepted=int(number(Column.STRICT_ACCEPTED)),
        reused=int(number(Column.REUSED)),
        stop=int(number(Column.STOP)),
        charged=number(Column.CHARGED),
        spent=number(Column.SPENT),
        shadow=number(Column.SHADOW) != 0,
        thinking=int(number(Column.THINKING)),
        guard=int(number(Column.GUARD)),
        exceptions=exceptions,
        details=tuple(zip(map(int, tokens), logprobs, strict=True))[: len(exceptions)],
    )
