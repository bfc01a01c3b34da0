"""The target's argmax out of block maxima, plain torch: the specification of :mod:`.triton_blocks`.

Model Runner V2 splits each row of logits into blocks of the vocabulary and keeps, per block, the maximum and
its token. Its rows are those of a request's last sampled token and drafts, ``[s, x0, x1]``: the logits at the
same index are for the *next* token, and the last row, the bonus token's, verifies no draft.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels.reference import pad_rows
from vllm_asd.kernels.verify import DraftBlocks

VOCAB_BLOCK = 8192


class BlockMaxima(NamedTuple):
    """What one pass over the logits leaves.

    Attributes:
        value: [N, B] float32, the largest logit of each block.
        token_id: [N, B] int64, its token.
    """

    value: Tensor
    token_id: Tensor


def scan_blocks(logits: Tensor, block: int = VOCAB_BLOCK) -> BlockMaxima:
    """Make the one pass; on V2 vLLM's own first kernel does this.

    Args:
        logits: [N, V] float.
        block: Tokens per block.

    Returns:
        The maxima; of a tie the first. Unspecified in blocks that hold NaN.
    """
    padding = -logits.shape[1] % block
    padded = torch.nn.functional.pad(logits.to(torch.float32), (0, padding), value=-torch.inf)
    value, index = padded.unflatten(1, (-1, block)).max(2)
    return BlockMaxima(value, index + torch.arange(0, padded.shape[1], block, device=logits.device))


class Alignment(NamedTuple):
    """The argmax per row, where it came from, and the draft that the row verifies.

    Attributes:
        best: [N] int64, the block that holds the row's maximum.
        argmax: [N] int64.
        draft_ids: [N] int64, -1 in the bonus rows.
    """

    best: Tensor
    argmax: Tensor
    draft_ids: Tensor


def align(maxima: BlockMaxima, draft_sampled: Tensor, cu_num_logits: Tensor, width: int) -> Alignment:
    """Combine the blocks as vLLM does, and bring drafts and rows together.

    Args:
        maxima: The block maxima; NaN counts as -inf, of a tie the first block wins.
        draft_sampled: [N] int, as V2 keeps it; -1 = never to be accepted.
        cu_num_logits: [R + 1] int, where each request's rows begin; the last entry is N.
        width: The longest request's rows, its bonus row included.

    Returns:
        For the rows ``[s, x0, x1]`` the drafts ``[x0, x1, -1]``.
    """
    del width
    best = maxima.value.masked_fill(maxima.value.isnan(), -torch.inf).argmax(1)
    following = torch.nn.functional.pad(draft_sampled[1:].to(torch.int64), (0, 1), value=-1)
    draft_ids = following.index_fill_(0, cu_num_logits[1:].to(torch.int64) - 1, -1)
    return Alignment(best, maxima.token_id.gather(1, best.unsqueeze(1)).squeeze(1), draft_ids)


def put_back(token_id: Tensor, alignment: Alignment) -> None:
    """Write the rewritten argmax into the blocks it came from: [N, B], in place."""
    token_id.scatter_(1, alignment.best.unsqueeze(1), alignment.argmax.unsqueeze(1))


def free_of_nan(blocks: DraftBlocks, largest_regret: float) -> Tensor:
    """Look for NaN in the rows that an exception might be granted in.

    An argmax that was combined from block maxima says nothing about NaN elsewhere in its row. Only rows whose
    draft is a near miss are read, so that the logits are not read a second time.

    Args:
        blocks: The drafts; no row's draft is kept at a regret above ``largest_regret``.
        largest_regret: Nats.

    Returns:
        [R, K] bool, False where the draft is a near miss and its row holds a NaN.
    """
    vocab_size = blocks.logits.shape[1]

    def gather(ids: Tensor) -> Tensor:
        return blocks.logits.gather(1, ids.clamp(0, vocab_size - 1).unsqueeze(1)).squeeze(1).to(torch.float32)

    draft_ids = blocks.draft_ids.to(torch.int64)
    is_draft = (draft_ids >= 0) & (draft_ids < vocab_size) & (draft_ids != blocks.argmax)
    gap = gather(blocks.argmax) - gather(draft_ids)
    near_miss = is_draft & (gap >= 0) & (gap <= largest_regret)
    return pad_rows(~(near_miss & blocks.logits.isnan().any(1)), blocks.cu_num_draft, blocks.width, True)
