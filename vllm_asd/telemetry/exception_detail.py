"""What the metrics level "detailed" adds to an exception: the kept token and the target's log-probability."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_asd.kernels import DraftBlocks, Outcome


def exception_detail(blocks: DraftBlocks, outcome: Outcome, block_cap: int) -> Tensor:
    """Look the exceptions of a step up in its logits.

    Costs a copy and a logsumexp of the exceptions' rows: on the CPU of those there are, elsewhere (where
    their number is not known on the host) of ``block_cap`` rows per request.

    Args:
        blocks: The step's drafts, after the decision; the logits as they were decided on.
        outcome: The decision.
        block_cap: The server's; no request may hold more exceptions in a block.

    Returns:
        [R, 2 * E] float64 with E = min(block_cap, K): the kept token of each exception in order, then the
        target's log-probability of its own token there. Behind the last exception, anything.
    """
    num_rows, width = outcome.exception_regret.shape
    num_entries = min(block_cap, width)
    is_exception = outcome.exception_regret >= 0
    if _counts_for_free(is_exception.device) and not bool(is_exception.any()):
        return torch.zeros(num_rows, 2 * num_entries, dtype=torch.float64)
    columns = torch.arange(width, device=is_exception.device)
    # Positions in order, then `width` for the rest.
    position = torch.where(is_exception, columns, width).sort(1).values[:, :num_entries]
    valid = position < width
    starts = torch.nn.functional.pad(blocks.cu_num_draft[:-1].to(torch.int64), (1, 0))
    flat = torch.where(valid, starts.unsqueeze(1) + position, 0).reshape(-1)
    targets = outcome.target_ids.gather(1, position.clamp(max=width - 1)).clamp(min=0).reshape(-1)

    result = torch.zeros(2, num_rows * num_entries, dtype=torch.float64, device=flat.device)
    if blocks.logits.shape[0] > 0:
        entries = torch.arange(flat.shape[0], device=flat.device)
        if _counts_for_free(flat.device):
            entries = entries[valid.reshape(-1)]
        rows = flat[entries]
        logits = blocks.logits.index_select(0, rows).to(torch.float32)
        logprob = logits.gather(1, targets[entries].unsqueeze(1)).squeeze(1) - logits.logsumexp(1)
        result[0, entries] = blocks.draft_ids[rows].to(torch.float64)
        result[1, entries] = logprob.to(torch.float64)
    return result.reshape(2, num_rows, num_entries).transpose(0, 1).reshape(num_rows, 2 * num_entries)


def _counts_for_free(device: torch.device) -> bool:
    """Whether asking how many exceptions there are does not make the host wait."""
    return device.type == "cpu"
