"""What the metrics level "detailed" adds to an exception: the kept token and the target's log-probability."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_asd.kernels.blocks import MaximaBlocks
from vllm_asd.kernels.outcome import Outcome
from vllm_asd.kernels.verify import DraftBlocks

# Rows of logits that are looked at together: 16 of 151,936 float32 are 9 MiB.
_SLICE = 16


def exception_details_reference(blocks: DraftBlocks | MaximaBlocks, outcome: Outcome) -> None:
    """Look the exceptions of a step up in its logits, and write :attr:`Outcome.details`.

    Reads the rows of the exceptions that were kept, some at a time, so that the memory does not grow with the
    batch. Asks how many there are, for which the host waits on any device but the CPU.

    Args:
        blocks: The step's drafts, after the decision; the logits as they were decided on.
        outcome: The decision.
    """
    details = outcome.details
    num_entries = details.shape[1] // 2
    details.zero_()
    is_exception = outcome.exception_regret >= 0
    row, position = is_exception.nonzero(as_tuple=True)
    entry = (is_exception.cumsum(1)[row, position]) - 1
    if isinstance(blocks, DraftBlocks):
        starts, draft_ids, first = _starts(blocks.cu_num_draft), blocks.draft_ids, 0
    else:
        starts, draft_ids, first = blocks.cu_num_logits[:-1].to(torch.int64), blocks.draft_sampled, 1
    flat = starts[row] + position
    details[row, entry] = draft_ids[flat + first].to(torch.float64)
    targets = outcome.target_ids[row, position].to(torch.int64)
    for some in torch.arange(row.shape[0], device=row.device).split(_SLICE):
        logits = blocks.logits.index_select(0, flat[some]).to(torch.float32)
        target = logits.gather(1, targets[some].unsqueeze(1)).squeeze(1)
        details[row[some], num_entries + entry[some]] = (target - logits.logsumexp(1)).to(torch.float64)


def _starts(cu_num_draft: Tensor) -> Tensor:
    return torch.nn.functional.pad(cu_num_draft[:-1].to(torch.int64), (1, 0))
