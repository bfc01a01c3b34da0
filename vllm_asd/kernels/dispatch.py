"""Which implementation runs where."""

from vllm_asd.kernels.verify import DraftBlocks, Outcome, RowLimits, verify_drafts_reference


def verify_drafts(blocks: DraftBlocks, rows: RowLimits) -> Outcome:
    """Decide one step with the fastest implementation for the device of ``blocks``.

    Same contract as :func:`verify_drafts_reference`, with the same results bit for bit.
    """
    return verify_drafts_reference(blocks, rows)
