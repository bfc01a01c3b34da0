"""Scoring of draft tokens against the target's logits, and the decision. Imports no vLLM."""

from vllm_asd.kernels.dispatch import verify_drafts
from vllm_asd.kernels.reference import DraftScores, pad_rows, row_positions, score_drafts, unpad_rows
from vllm_asd.kernels.verify import DraftBlocks, Outcome, RowLimits, verify_drafts_reference

__all__ = [
    "DraftBlocks",
    "DraftScores",
    "Outcome",
    "RowLimits",
    "pad_rows",
    "row_positions",
    "score_drafts",
    "unpad_rows",
    "verify_drafts",
    "verify_drafts_reference",
]
