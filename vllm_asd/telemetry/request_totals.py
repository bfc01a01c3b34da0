"""What each request's blocks add up to: one row of numbers per request, all rows of a step added at once."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from vllm_asd.config import RequestLimits
from vllm_asd.kernels.outcome import Column
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.block_tally import NUM_SUMS, BlockTally
from vllm_asd.telemetry.counters import Counter
from vllm_asd.telemetry.step_report import StepBlocks

NEVER = -1.0


class Total(IntEnum):
    """The columns of a row after its sums, which are those of :class:`BlockTally`."""

    EXHAUSTED_AT = NUM_SUMS  # output position, or NEVER
    GUARDED_AT = NUM_SUMS + 1  # output position, or NEVER
    HAS_PHASES = NUM_SUMS + 2  # 1 when reasoning and answer have an account each


class Account(IntEnum):
    """The columns of one account, of which a row has :data:`NUM_ACCOUNTS`."""

    SPENT = 0
    EXCEPTIONS = 1
    EXHAUSTED_AT = 2
    HAS_BUDGET = 3  # 0 when it is strict by wish: it has nothing to run out of


# Reasoning (of a request without phases: everything), answer, and blocks that belong to neither.
REASONING, ANSWER, NEITHER = range(3)
NUM_ACCOUNTS = 3
FIRST_ACCOUNT = NUM_SUMS + len(Total)
WIDTH = FIRST_ACCOUNT + NUM_ACCOUNTS * len(Account)


def account_column(account: int, column: Account) -> int:
    """Where in a row a column of an account stands."""
    return FIRST_ACCOUNT + account * len(Account) + column


def new_row(limits: RequestLimits) -> np.ndarray:
    """[WIDTH] float64: a request before its first block."""
    row = np.zeros(WIDTH)
    row[[Total.EXHAUSTED_AT, Total.GUARDED_AT]] = NEVER
    for account in range(NUM_ACCOUNTS):
        row[account_column(account, Account.EXHAUSTED_AT)] = NEVER
        row[account_column(account, Account.HAS_BUDGET)] = 1
    if limits.answer is not None:
        row[Total.HAS_PHASES] = 1
        row[account_column(REASONING, Account.HAS_BUDGET)] = limits.budget != 0
        row[account_column(ANSWER, Account.HAS_BUDGET)] = limits.answer.budget != 0
    return row


def add_blocks(
    totals: np.ndarray, blocks: StepBlocks, tally: BlockTally, positions: np.ndarray, num_kept: np.ndarray
) -> None:
    """Add one block to each row.

    Args:
        totals: [M, WIDTH] float64, written.
        blocks: What the worker decided, a row for each.
        tally: What was kept of it; its counters of requests are set: 1 where it happened for the first time.
        positions: [M] int64, output tokens that each request had before the block.
        num_kept: [M] int64, tokens of the block in the response; at least 1.
    """
    every = np.arange(len(totals))
    account = FIRST_ACCOUNT + len(Account) * _accounts(totals, blocks)
    totals[every, account + Account.SPENT] = tally.spent
    totals[every, account + Account.EXCEPTIONS] += tally.sum(Counter.EXCEPTIONS)
    guard = blocks.column(Column.GUARD)
    tally.sum(Counter.EXHAUSTED_REQUESTS)[:] = _note_exhausted(totals, account, tally, positions)
    tally.sum(Counter.GUARDED_REQUESTS)[:] = _note_guarded(totals, guard, positions, num_kept)
    totals[:, :NUM_SUMS] += tally.sums


def needs_position(blocks: StepBlocks, detailed: bool) -> np.ndarray:
    """[M] bool: whether the block's place in the output may matter; else its position need not be known."""
    needed: np.ndarray = (blocks.column(Column.STOP) == StopReason.BUDGET) | (
        blocks.column(Column.GUARD) != 0
    )
    if detailed:
        needed |= blocks.column(Column.EXCEPTIONS) != 0
    return needed


def _accounts(totals: np.ndarray, blocks: StepBlocks) -> np.ndarray:
    """[M] int64: the account that each block was paid from."""
    has_phases = totals[:, Total.HAS_PHASES] != 0
    if not has_phases.any():
        return np.full(len(totals), REASONING)
    thinking = blocks.column(Column.THINKING)
    by_phase = np.where(thinking > 0, REASONING, np.where(thinking == 0, ANSWER, NEITHER))
    return np.where(has_phases, by_phase, REASONING)


def _note_exhausted(
    totals: np.ndarray, account: np.ndarray, tally: BlockTally, positions: np.ndarray
) -> np.ndarray:
    is_first = np.zeros(len(totals), dtype=bool)
    rows = np.flatnonzero(tally.out_of_budget)
    if not len(rows):
        return is_first
    rows = rows[totals[rows, account[rows] + Account.HAS_BUDGET] != 0]
    at = positions[rows] + tally.sum(Counter.ACCEPTED_TOKENS)[rows]
    is_first[rows] = totals[rows, Total.EXHAUSTED_AT] == NEVER
    for column in (Total.EXHAUSTED_AT, account[rows] + Account.EXHAUSTED_AT):
        known = totals[rows, column]
        totals[rows, column] = np.where(known == NEVER, at, known)
    return is_first


def _note_guarded(
    totals: np.ndarray, guard: np.ndarray, positions: np.ndarray, num_kept: np.ndarray
) -> np.ndarray:
    is_first: np.ndarray = (guard != 0) & (totals[:, Total.GUARDED_AT] == NEVER)
    rows = np.flatnonzero(is_first)
    if not len(rows):
        return is_first
    # Tripped before, by tokens without drafts or a block that vLLM discarded: this one is strict too.
    totals[rows, Total.GUARDED_AT] = positions[rows] + np.where(guard[rows] == 1, num_kept[rows], 0)
    return is_first
