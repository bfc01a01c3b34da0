"""Scoring of draft tokens against the target's logits, and the decision. Imports no vLLM."""

from vllm_asd.kernels.blocks import MaximaBlocks, padded_drafts, verify_maxima_reference
from vllm_asd.kernels.charge import charge_accounts_reference
from vllm_asd.kernels.detail import exception_details_reference
from vllm_asd.kernels.dispatch import (
    charge_accounts,
    draft_scope,
    exception_details,
    follow_guards,
    follow_phases,
    load,
    verify_drafts,
    verify_maxima,
)
from vllm_asd.kernels.guards import follow_guards_reference
from vllm_asd.kernels.gumbel import add_gumbel_noise
from vllm_asd.kernels.outcome import NUM_SCALARS, Column, Outcome
from vllm_asd.kernels.phases import ThinkMarkers, draft_scope_reference, follow_phases_reference
from vllm_asd.kernels.reference import DraftScores, pad_rows, row_positions, score_drafts, unpad_rows
from vllm_asd.kernels.verify import DraftBlocks, ProtectedIds, RowLimits, verify_drafts_reference

__all__ = [
    "NUM_SCALARS",
    "Column",
    "DraftBlocks",
    "DraftScores",
    "MaximaBlocks",
    "Outcome",
    "ProtectedIds",
    "RowLimits",
    "ThinkMarkers",
    "add_gumbel_noise",
    "charge_accounts",
    "charge_accounts_reference",
    "draft_scope",
    "draft_scope_reference",
    "exception_details",
    "exception_details_reference",
    "follow_guards",
    "follow_guards_reference",
    "follow_phases",
    "follow_phases_reference",
    "load",
    "pad_rows",
    "padded_drafts",
    "row_positions",
    "score_drafts",
    "unpad_rows",
    "verify_drafts",
    "verify_drafts_reference",
    "verify_maxima",
    "verify_maxima_reference",
]
