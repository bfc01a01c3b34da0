"""What every rule would have kept of the control's own blocks: one trajectory, so the rules alone differ."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from eval.frontier.arms import Arm
from eval.frontier.rules import Rule
from vllm_asd.kernels import Column, DraftBlocks, Outcome, RowLimits, row_positions

Decide = Callable[[DraftBlocks, RowLimits, Outcome, list[Rule]], None]
COLUMNS = ("rounds", "accepted", "strict", "exceptions", "regret")
_SUMMED = [Column.NUM_DRAFT, Column.ACCEPTED, Column.STRICT_ACCEPTED, Column.EXCEPTIONS, Column.CHARGED]


class Replay:
    """Decides the control's blocks again under every rule, changing nothing, with a full budget each time.

    Attributes:
        sums: Per request and arm, the sums of :data:`COLUMNS`: rounds, draft tokens kept and kept by strict,
            exceptions, nats.
    """

    def __init__(self, arms: Sequence[Arm], decide: Decide) -> None:
        """Start without blocks.

        Args:
            arms: Whose rules are asked.
            decide: How a step is decided under given rules.
        """
        self._arms = arms
        self._decide = decide
        self.sums: dict[str, dict[str, list[float]]] = {}

    def observe(self, keys: dict[int, str], stop_ids: dict[int, list[int]], blocks: DraftBlocks) -> None:
        """Look at a step before it is decided.

        Args:
            keys: What the rows to look at are called, by row, in order.
            stop_ids: Their tokens that no rule may touch.
            blocks: The step's drafts; read only.
        """
        if not keys or not self._arms:
            return
        part = _rows(blocks, list(keys))
        longest = max(len(stop_ids[row]) for row in keys)
        protected = [stop_ids[row] + [-1] * (longest - len(stop_ids[row])) for row in keys]
        for arm in self._arms:
            outcome = Outcome.empty(len(keys), part.width, 0, part.logits.device)
            limits = _limits(arm, protected, part.logits.shape[1])
            self._decide(part, limits, outcome, [arm.rule] * len(keys))
            columns = outcome.table[:, _SUMMED].tolist()
            for key, (num_draft, *counts) in zip(keys.values(), columns, strict=True):
                if num_draft:
                    sums = self.sums.setdefault(key, defaultdict(lambda: [0.0] * len(COLUMNS)))[arm.name]
                    for index, count in enumerate((1, *counts)):
                        sums[index] += count


def _rows(blocks: DraftBlocks, picked: list[int]) -> DraftBlocks:
    """The blocks of some rows, in order; a copy."""
    row, _ = row_positions(blocks.cu_num_draft, blocks.draft_ids.shape[0])
    counts = torch.bincount(row, minlength=blocks.cu_num_draft.shape[0])[picked]
    flat = torch.isin(row, torch.tensor(picked)).nonzero().squeeze(1)
    return DraftBlocks(
        logits=blocks.logits[flat],
        argmax=blocks.argmax[flat],
        draft_ids=blocks.draft_ids[flat],
        cu_num_draft=counts.cumsum(0).to(blocks.cu_num_draft.dtype),
        width=blocks.width,
    )


def _limits(arm: Arm, protected: list[list[int]], vocab_size: int) -> RowLimits:
    number = len(protected)
    return RowLimits.of(
        remaining=torch.full((number,), float(arm.limits["asd_budget"]), dtype=torch.float64),
        gate=torch.full((number,), float(arm.limits["asd_gate"]), dtype=torch.float64),
        block_cap=torch.full((number,), int(arm.limits["asd_block_cap"]), dtype=torch.int32),
        # Under shadow nothing is rewritten.
        shadow=torch.ones(number, dtype=torch.bool),
        protected_ids=torch.tensor(protected, dtype=torch.int64).view(number, -1),
        vocab_size=vocab_size,
    )
