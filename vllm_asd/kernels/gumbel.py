"""Gumbel noise on the target's logits, so that their argmax is a sample. Plain torch, imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor


def add_gumbel_noise(
    logits: Tensor,
    num_draft_tokens: Sequence[int],
    coupled: Sequence[bool],
    generators: Mapping[int, torch.Generator],
    float64: bool = False,
) -> Tensor:
    """Perturb the coupled rows with iid Gumbel(0, 1), fresh at every position.

    The argmax of a perturbed position is a sample of the softmax of its logits (the Gumbel-max trick). A
    masked token, -inf, stays masked. The noise is -log(E) with E exponential, as vLLM draws it.

    Args:
        logits: [N, V] float32, after temperature, top-k and top-p; request after request.
        num_draft_tokens: [R], positions per request; their sum is N.
        coupled: [R], which requests to perturb.
        generators: By row, of the requests with a seed; theirs and no other's noise comes from there.
        float64: Draw in double precision, which reaches further into the tail on a GPU.

    Returns:
        [N, V] float32, a new tensor; the rows of the other requests hold the same bits.
    """
    exponential = torch.empty_like(logits, dtype=torch.float64 if float64 else torch.float32)
    position = 0
    sources = [(flag, generators.get(row) if flag else None) for row, flag in enumerate(coupled)]
    # Neighbours that share the device's own generator are drawn in one call.
    for (is_coupled, generator), run in groupby(range(len(sources)), key=sources.__getitem__):
        first, position = position, position + sum(num_draft_tokens[row] for row in run)
        if is_coupled:
            exponential[first:position].exponential_(generator=generator)
        else:
            exponential[first:position] = 1.0  # whose noise is 0
    return logits - exponential.clamp_(min=torch.finfo(torch.float32).tiny).log_().to(logits.dtype)
