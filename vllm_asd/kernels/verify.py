"""One verification step, from logits to decisions: what every implementation takes, and the plain version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vllm_asd.kernels.accounts import BLOCK_CAP, BUDGET, GATE, NUM_COLUMNS, REMAINING, SHADOW
from vllm_asd.kernels.outcome import NUM_SCALARS, Column, Outcome
from vllm_asd.kernels.reference import pad_rows, score_drafts, unpad_rows
from vllm_asd.policy import Pricing, select_prefix, stop_reason, strict_prefix

_WORD_BITS = 32


class DraftBlocks(NamedTuple):
    """The drafts of one step, flat, request after request, as vLLM keeps them.

    Attributes:
        logits: [N, V] float, the target's logits after everything that vLLM applies before its argmax.
        argmax: [N] int64, vLLM's own argmax of ``logits``. Rewritten in place at approved positions.
        draft_ids: [N] int; -1 and ids >= V end the row's proposal.
        cu_num_draft: [R] int, cumulative and inclusive: the last entry is N.
        width: The longest row, known on the host; at most the outcome's.
    """

    logits: Tensor
    argmax: Tensor
    draft_ids: Tensor
    cu_num_draft: Tensor
    width: int

    @property
    def num_rows(self) -> int:
        """R."""
        return int(self.cu_num_draft.shape[0])


class ProtectedIds(NamedTuple):
    """Which tokens each row's exceptions leave alone: one bitmap per distinct set, and each row's set.

    Attributes:
        words: [P, W] int32, token t's bit is bit t % 32 of word t // 32; a token after the last word is in no
            set.
        row: [R] int64, each request's row of ``words``.
    """

    words: Tensor
    row: Tensor

    def hold(self, ids: Tensor) -> Tensor:
        """[R, K] bool: is the token [R, K] in its row's set? An id outside the bitmap never is."""
        word = ids >> 5
        known = (ids >= 0) & (word < self.words.shape[1])
        bits = self.words[self.row.unsqueeze(1), torch.where(known, word, 0)]
        return known & ((bits >> (ids & (_WORD_BITS - 1)).to(torch.int32)) & 1 != 0)

    @staticmethod
    def pack(ids: Sequence[int] | np.ndarray, vocab_size: int) -> np.ndarray:
        """Build one bitmap: [W] int32 with W = ceil(vocab_size / 32); ids outside are left out."""
        members = np.zeros(-(-vocab_size // _WORD_BITS) * _WORD_BITS, dtype=np.bool_)
        array = np.asarray(ids, dtype=np.int64)
        members[array[(array >= 0) & (array < vocab_size)]] = True
        return np.packbits(members, bitorder="little").view(np.int32)


class RowLimits(NamedTuple):
    """What the rule knows about each row besides its drafts.

    Attributes:
        accounts: [S, >= 7] float64, the ledger's rows (:mod:`.accounts`); row 0 is all zeros, so strict.
        slots: [R] int64, each row's account.
        protected: Tokens never relaxed to nor away from.
        closed: [R] bool, rows that are strict whatever their account says; None for nowhere.
        in_scope: [R, K] bool, where exceptions may be made; None for everywhere.
        pricing: What q is.
    """

    accounts: Tensor
    slots: Tensor
    protected: ProtectedIds
    closed: Tensor | None
    in_scope: Tensor | None
    pricing: Pricing

    @classmethod
    def of(
        cls,
        remaining: Tensor,
        gate: Tensor,
        block_cap: Tensor,
        shadow: Tensor,
        protected_ids: Tensor,
        vocab_size: int,
        in_scope: Tensor | None = None,
        pricing: Pricing = "remaining",
    ) -> RowLimits:
        """Give R rows accounts of their own, outside any ledger: for experiments and tests.

        Args:
            remaining: [R] float64, nats.
            gate: [R] float.
            block_cap: [R] int.
            shadow: [R] bool.
            protected_ids: [R, S] int64, padded with -1.
            vocab_size: V.
            in_scope: [R, K] bool, or None.
            pricing: What q is.
        """
        num_rows = remaining.shape[0]
        accounts = torch.zeros(num_rows + 1, NUM_COLUMNS, dtype=torch.float64, device=remaining.device)
        columns = {REMAINING: remaining, BUDGET: remaining, GATE: gate, BLOCK_CAP: block_cap, SHADOW: shadow}
        for column, values in columns.items():
            accounts[1:, column] = values
        sets = [ProtectedIds.pack(ids, vocab_size) for ids in protected_ids.tolist()]
        words = np.stack([ProtectedIds.pack([], vocab_size), *sets])
        index = torch.arange(1, num_rows + 1, device=remaining.device)
        protected = ProtectedIds(torch.from_numpy(words).to(remaining.device), index)
        return cls(accounts, index, protected, None, in_scope, pricing)

    def rows(self, first: int, number: int) -> RowLimits:
        """Some consecutive rows, as views."""
        if first == 0 and number == self.slots.shape[0]:
            return self
        chunk = slice(first, first + number)
        return self._replace(
            slots=self.slots[chunk],
            protected=self.protected._replace(row=self.protected.row[chunk]),
            closed=None if self.closed is None else self.closed[chunk],
            in_scope=None if self.in_scope is None else self.in_scope[chunk],
        )

    @property
    def remaining(self) -> Tensor:
        """[R] float64, nats left of the budget; a copy."""
        return self._column(REMAINING)

    @property
    def gate(self) -> Tensor:
        """[R] float64; 0 in closed rows. A copy."""
        gate = self._column(GATE)
        return gate if self.closed is None else gate.masked_fill(self.closed, 0)

    @property
    def block_cap(self) -> Tensor:
        """[R] int64; a copy."""
        return self._column(BLOCK_CAP).to(torch.int64)

    @property
    def shadow(self) -> Tensor:
        """[R] bool; a copy."""
        return self._column(SHADOW) != 0

    def _column(self, column: int) -> Tensor:
        return self.accounts[:, column].index_select(0, self.slots)


def check_pricing(pricing: str) -> None:
    """Refuse what no kernel knows.

    Raises:
        ValueError: ``pricing`` is neither of the two.
    """
    if pricing not in ("remaining", "realized"):
        raise ValueError(f"pricing must be 'remaining' or 'realized', got {pricing!r}")


def verify_drafts_reference(blocks: DraftBlocks, rows: RowLimits, outcome: Outcome) -> None:
    """Decide one step in plain torch: the specification of the faster versions.

    ``blocks.argmax`` is rewritten in place to the draft token at the positions of kept exceptions, except in
    rows under shadow. vLLM's own kernel then sees a match there and needs no change.

    Args:
        blocks: The step's drafts.
        rows: The step's limits; a row with a limit at zero gets what strict verification gives.
        outcome: [R, ...], written: all but the spending, which is the ledger's to say, and the details.

    Raises:
        ValueError: ``rows.pricing`` is unknown.
    """
    check_pricing(rows.pricing)
    cu, width = blocks.cu_num_draft, outcome.width
    scores = score_drafts(blocks.logits, blocks.argmax, blocks.draft_ids)
    ids = pad_rows(blocks.draft_ids, cu, width, -1).to(torch.int64)
    target_ids = pad_rows(blocks.argmax, cu, width, -1)
    is_match = pad_rows(scores.is_match, cu, width, False)
    regret = pad_rows(scores.regret, cu, width, torch.inf)
    num_draft = ((ids >= 0) & (ids < blocks.logits.shape[1])).cumprod(1).sum(1)

    protected = rows.protected.hold(ids) | rows.protected.hold(target_ids)
    refused = protected if rows.in_scope is None else protected | ~rows.in_scope
    regret = regret.masked_fill(refused, torch.inf)

    limits = (rows.remaining, rows.gate, rows.block_cap)
    verdict = select_prefix(regret, is_match, num_draft, *limits, rows.pricing)
    stop = stop_reason(regret, is_match, num_draft, verdict, *limits, protected, rows.pricing)
    position = torch.arange(width, device=ids.device)
    kept_exception = (position < verdict.accepted.unsqueeze(1)) & ~is_match
    rewrite = unpad_rows(kept_exception & ~rows.shadow.unsqueeze(1), cu, blocks.argmax.shape[0])
    blocks.argmax.copy_(torch.where(rewrite, blocks.draft_ids.to(torch.int64), blocks.argmax))

    scalars = {
        Column.NUM_DRAFT: num_draft,
        Column.ACCEPTED: verdict.accepted,
        Column.STRICT_ACCEPTED: strict_prefix(is_match, num_draft),
        Column.EXCEPTIONS: verdict.exceptions,
        Column.REUSED: verdict.reused,
        Column.STOP: stop,
        Column.CHARGED: verdict.charged,
        Column.SPENT: torch.zeros_like(verdict.charged),
        Column.SHADOW: rows.shadow,
        Column.THINKING: torch.full_like(verdict.charged, -1),
        Column.GUARD: torch.zeros_like(verdict.charged),
    }
    outcome.table[:, :NUM_SCALARS] = torch.stack(
        [scalars[column].to(torch.float64) for column in Column], dim=1
    )
    outcome.exception_regret.copy_(torch.where(kept_exception, regret.to(torch.float64), -1.0))
    outcome.target_ids.copy_(torch.where(kept_exception, target_ids, -1))
