"""Plain torch: the specification that every faster version is tested against.

vLLM keeps the drafts of a step in one flat row, request after request; N is its length, known on the host.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class DraftScores(NamedTuple):
    """How the target rates each draft token.

    Attributes:
        regret: [N] float32, nats, >= 0; +inf = not acceptable.
        is_match: [N] bool, the draft token is the target's argmax, by id: a tie is not a match.
    """

    regret: Tensor
    is_match: Tensor


def score_drafts(logits: Tensor, argmax: Tensor, draft_ids: Tensor) -> DraftScores:
    """Measure how far each draft token lies below the target's argmax.

    The log-probability gap equals the logit gap, so two gathered values per row are enough and V is not read
    again. A match is decided by id alone, even in a row of NaN, since strict verification would keep that
    token as well.

    Args:
        logits: [N, V] float of any width, after all that vLLM applies before its argmax.
        argmax: [N] int64, the target's token as vLLM computed it.
        draft_ids: [N] int; -1 (padding, placeholder) and any other id outside [0, V) is never accepted.

    Returns:
        The scores. The regret is +inf for an id outside [0, V), a draft logit of -inf or NaN, a maximum that
        is NaN or infinite, and an ``argmax`` that is not the maximum (the gap would be negative: do not trust
        the row).
    """
    vocab_size = logits.shape[1]

    def gather(ids: Tensor) -> Tensor:
        # Clamped: -1 as an index would read another token, or another row's memory on a GPU.
        index = ids.to(torch.int64).clamp(0, vocab_size - 1).unsqueeze(1)
        return logits.gather(1, index).squeeze(1).to(torch.float32)

    in_vocab = (draft_ids >= 0) & (draft_ids < vocab_size)
    argmax_in_vocab = (argmax >= 0) & (argmax < vocab_size)
    gap = gather(argmax) - gather(draft_ids)
    # False for NaN, so that inf - inf lands on the refused side too.
    acceptable = in_vocab & argmax_in_vocab & (gap >= 0)
    return DraftScores(
        regret=torch.where(acceptable, gap, torch.inf),
        is_match=in_vocab & (draft_ids == argmax),
    )


def _row_starts(cu_num_draft: Tensor) -> Tensor:
    """Prepend 0 to inclusive cumulative counts [R]; returns [R + 1], entry r being where row r starts."""
    return torch.nn.functional.pad(cu_num_draft, (1, 0))


def pad_rows(flat: Tensor, cu_num_draft: Tensor, width: int, fill: float) -> Tensor:
    """Lay a flat row out as one padded row per request.

    ``pad_rows([a, b, c], cu_num_draft=[2, 2, 3], width=2, fill=0)`` is ``[[a, b], [0, 0], [c, 0]]``.

    Args:
        flat: [N], any dtype.
        cu_num_draft: [R] int, cumulative and inclusive: the last entry is N.
        width: K, at least the longest row; what is longer is cut off.
        fill: value of the padding, of ``flat``'s dtype.

    Returns:
        [R, K], ``flat``'s dtype.
    """
    starts = _row_starts(cu_num_draft).to(torch.int64).unsqueeze(1)
    index = starts[:-1] + torch.arange(width, device=flat.device)
    # The padding reads one extra element, which holds the fill value: no branch for N = 0.
    index = torch.where(index < starts[1:], index, flat.shape[0])
    return torch.cat((flat, flat.new_full((1,), fill)))[index]


def row_positions(cu_num_draft: Tensor, num_flat: int) -> tuple[Tensor, Tensor]:
    """Locate each element of a flat row: the inverse index of :func:`pad_rows`.

    Args:
        cu_num_draft: [R] int, cumulative and inclusive.
        num_flat: N. Elements behind the last row, if any, are given row R.

    Returns:
        row and position in the row, both [N] int64.
    """
    starts = _row_starts(cu_num_draft).to(torch.int64)
    flat_index = torch.arange(num_flat, device=starts.device)
    row = torch.searchsorted(starts[1:], flat_index, right=True)
    return row, flat_index - starts[row]


def unpad_rows(padded: Tensor, cu_num_draft: Tensor, num_flat: int) -> Tensor:
    """Undo :func:`pad_rows`.

    Args:
        padded: [R, K], any dtype.
        cu_num_draft: [R] int, cumulative and inclusive; no row is longer than K.
        num_flat: N, equal to the last entry of ``cu_num_draft``.

    Returns:
        [N], ``padded``'s dtype.
    """
    row, position = row_positions(cu_num_draft, num_flat)
    return padded[row, position]
