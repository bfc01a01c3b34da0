"""Scoring of draft tokens against the target's logits, and the decision. Imports no vLLM."""

from vllm_asd.kernels.blocks import Alignment, BlockMaxima, put_back
from vllm_asd.kernels.charge import charge_accounts_reference
from vllm_asd.kernels.dispatch import align, charge_accounts, free_of_nan, verify_drafts, warm_up
from vllm_asd.kernels.gumbel import add_gumbel_noise
from vllm_asd.kernels.reference import DraftScores, pad_rows, row_positions, score_drafts, unpad_rows
from vllm_asd.kernels.verify import DraftBlocks, Outcome, RowLimits, verify_drafts_reference

__all__ = [
    "Alignment",
    "BlockMaxima",
    "DraftBlocks",
    "DraftScores",
    "Outcome",
    "RowLimits",
    "add_gumbel_noise",
    "align",
    "charge_accounts",
    "charge_accounts_reference",
    "free_of_nan",
    "pad_rows",
    "put_back",
    "row_positions",
    "score_drafts",
    "unpad_rows",
    "verify_drafts",
    "verify_drafts_reference",
    "warm_up",
]
