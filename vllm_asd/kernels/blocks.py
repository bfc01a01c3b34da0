"""The decision out of block maxima, plain torch: the specification of :mod:`.triton_verify`.

Model Runner V2 splits each row of logits into blocks of the vocabulary and keeps, per block, the maximum and
its token. Its rows are those of a request's last sampled token and drafts, ``[s, x0, x1]``: the logits at the
same index are for the *next* token, and the last row, the bonus token's, verifies no draft.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels.outcome import NUM_SCALARS, Outcome
from vllm_asd.kernels.reference import pad_rows
from vllm_asd.kernels.verify import DraftBlocks, RowLimits, verify_drafts_reference

VOCAB_BLOCK = 8192


class MaximaBlocks(NamedTuple):
    """The drafts of one step as V2 keeps them, bonus rows included.

    vLLM leaves ``block_max`` and ``block_argmax`` unwritten in a full block's bonus row, and ``block_argmax``
    in every sampled row: nothing read there may be used as an index, nor decide anything.

    Attributes:
        logits: [N, V] float, after all that vLLM applies before its argmax.
        block_max: [N, B] float32, the largest logit of each block of the vocabulary.
        block_argmax: [N, B] int64, its token. Rewritten in place at approved positions.
        draft_sampled: [N] int, each request's last sampled token, then its drafts; -1 is never to be
            accepted.
        cu_num_logits: [R + 1] int, where each request's rows begin; the last entry is N.
    """

    logits: Tensor
    block_max: Tensor
    block_argmax: Tensor
    draft_sampled: Tensor
    cu_num_logits: Tensor

    @property
    def num_rows(self) -> int:
        """R."""
        return int(self.cu_num_logits.shape[0]) - 1


def scan_blocks(logits: Tensor, block: int = VOCAB_BLOCK) -> tuple[Tensor, Tensor]:
    """Make the one pass over the logits; on V2 vLLM's own first kernel does this.

    Args:
        logits: [N, V] float.
        block: Tokens per block.

    Returns:
        The maxima [N, B] float32 and their tokens [N, B] int64; of a tie the first. Unspecified in
        blocks that hold NaN.
    """
    padding = -logits.shape[1] % block
    padded = torch.nn.functional.pad(logits.to(torch.float32), (0, padding), value=-torch.inf)
    value, index = padded.unflatten(1, (-1, block)).max(2)
    return value, index + torch.arange(value.shape[1], device=logits.device) * block


def padded_drafts(blocks: DraftBlocks | MaximaBlocks, width: int) -> Tensor:
    """Lay the drafts of a step out by request: [R, width] int, padded with -1."""
    if isinstance(blocks, DraftBlocks):
        return pad_rows(blocks.draft_ids, blocks.cu_num_draft, width, -1)
    return pad_rows(_following(blocks), blocks.cu_num_logits[1:], width, -1)


def verify_maxima_reference(
    blocks: MaximaBlocks, rows: RowLimits, outcome: Outcome, largest_regret: float
) -> None:
    """Decide one step from block maxima; :func:`verify_drafts_reference`'s contract.

    The blocks are combined as vLLM does: NaN counts as -inf, of a tie the first block wins. At approved
    positions the winning block's token is rewritten to the draft token. Block maxima say nothing about NaN
    elsewhere in a row, so no exception is made in a row that holds one.

    Args:
        blocks: The step's drafts.
        rows: The step's limits.
        outcome: [R, ...], written.
        largest_regret: No draft is kept at a higher one, in nats: rows with no nearer miss need no look.
    """
    vocab_size = blocks.logits.shape[1]
    best = blocks.block_max.masked_fill(blocks.block_max.isnan(), -torch.inf).argmax(1, keepdim=True)
    raw = blocks.block_argmax.gather(1, best).squeeze(1)
    # Unwritten memory may hold anything.
    argmax = torch.where((raw >= 0) & (raw < vocab_size), raw, -1)
    cu = blocks.cu_num_logits[1:]
    # One column more than the outcome has: a full block's bonus row, whose draft is -1.
    width = outcome.width + 1
    drafts = DraftBlocks(blocks.logits, argmax.clone(), _following(blocks), cu, width)
    # What vLLM did not look at (a padded vocabulary larger than the draft model's) decides nothing.
    seen = blocks.logits[:, : blocks.block_max.shape[1] * VOCAB_BLOCK]
    clean = free_of_nan(drafts._replace(logits=seen), largest_regret)
    if rows.in_scope is not None:
        clean &= torch.nn.functional.pad(rows.in_scope, (0, 1), value=False)
    wide = Outcome.empty(cu.shape[0], width, 0, outcome.table.device)
    verify_drafts_reference(drafts, rows._replace(in_scope=clean), wide)
    outcome.table[:, :NUM_SCALARS] = wide.table[:, :NUM_SCALARS]
    outcome.exception_regret.copy_(wide.exception_regret[:, :-1])
    outcome.target_ids.copy_(wide.target_ids[:, :-1])
    rewritten = torch.where(drafts.argmax != argmax, drafts.argmax, raw)
    blocks.block_argmax.scatter_(1, best, rewritten.unsqueeze(1))


def free_of_nan(blocks: DraftBlocks, largest_regret: float) -> Tensor:
    """Look for NaN in the rows that an exception might be granted in.

    Only rows whose draft is a near miss are read, so that the logits are not read a second time.

    Args:
        blocks: The drafts; no row's draft is kept at a regret above ``largest_regret``.
        largest_regret: Nats.

    Returns:
        [R, blocks.width] bool, False where the draft is a near miss and its row holds a NaN.
    """
    vocab_size = blocks.logits.shape[1]

    def gather(ids: Tensor) -> Tensor:
        return blocks.logits.gather(1, ids.clamp(0, vocab_size - 1).unsqueeze(1)).squeeze(1).to(torch.float32)

    draft_ids = blocks.draft_ids.to(torch.int64)
    is_draft = (draft_ids >= 0) & (draft_ids < vocab_size) & (draft_ids != blocks.argmax)
    gap = gather(blocks.argmax) - gather(draft_ids)
    near_miss = is_draft & (gap >= 0) & (gap <= largest_regret)
    return pad_rows(~(near_miss & blocks.logits.isnan().any(1)), blocks.cu_num_draft, blocks.width, True)


def _following(blocks: MaximaBlocks) -> Tensor:
    """The draft that each row verifies: [N] int64, -1 in the bonus rows."""
    following = torch.nn.functional.pad(blocks.draft_sampled[1:].to(torch.int64), (0, 1), value=-1)
    return following.index_fill_(0, blocks.cu_num_logits[1:].to(torch.int64) - 1, -1)
