"""One verification step, from logits to decisions: what every implementation takes and returns."""

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels.reference import pad_rows, score_drafts, unpad_rows
from vllm_asd.policy import Pricing, select_prefix, stop_reason, strict_prefix


class DraftBlocks(NamedTuple):
    """The drafts of one step, flat, request after request, as vLLM keeps them.

    Attributes:
        logits: [N, V] float32, the target's logits after everything that vLLM applies before its argmax.
        argmax: [N] int64, vLLM's own argmax of ``logits``. Rewritten in place at approved positions.
        draft_ids: [N] int; -1 and ids >= V end the row's proposal.
        cu_num_draft: [R] int, cumulative and inclusive: the last entry is N.
        width: K, the longest row, known on the host.
    """

    logits: Tensor
    argmax: Tensor
    draft_ids: Tensor
    cu_num_draft: Tensor
    width: int


class RowLimits(NamedTuple):
    """What the rule knows about each row besides its drafts.

    Attributes:
        remaining: [R] float64, nats left of the request's budget; 0 for rows that stay vLLM's.
        gate: [R] float64.
        block_cap: [R] int32.
        shadow: [R] bool, decide and count but emit strict.
        protected_ids: [R, S] int64, token ids never relaxed to nor away from; padded with -1.
        in_scope: [R, K] bool or None (= everywhere).
        pricing: What q is.
    """

    remaining: Tensor
    gate: Tensor
    block_cap: Tensor
    shadow: Tensor
    protected_ids: Tensor
    in_scope: Tensor | None
    pricing: Pricing


class Outcome(NamedTuple):
    """What was decided, per row.

    Attributes:
        num_draft: [R] int64, valid draft tokens.
        accepted: [R] int64, draft tokens kept (in shadow: that would have been kept).
        strict_accepted: [R] int64, what strict verification keeps of the same block.
        exceptions: [R] int64, kept tokens that are not the target's argmax.
        reused: [R] int64, kept matches behind the first exception.
        stop: [R] int8, :class:`vllm_asd.policy.StopReason`.
        charged: [R] float64, nats.
        exception_regret: [R, K] float64, the regret of each kept exception, -1 elsewhere.
        target_ids: [R, K] int64, vLLM's argmax before any rewriting, -1 in the padding.
    """

    num_draft: Tensor
    accepted: Tensor
    strict_accepted: Tensor
    exceptions: Tensor
    reused: Tensor
    stop: Tensor
    charged: Tensor
    exception_regret: Tensor
    target_ids: Tensor


def verify_drafts_reference(blocks: DraftBlocks, rows: RowLimits) -> Outcome:
    """Decide one step in plain torch: the specification of the faster versions.

    ``blocks.argmax`` is rewritten in place to the draft token at the positions of kept exceptions, except in
    rows under shadow. vLLM's own kernel then sees a match there and needs no change.

    Args:
        blocks: The step's drafts.
        rows: The step's limits.

    Returns:
        The outcome; a row with a limit at zero gets strict's.
    """
    cu, width = blocks.cu_num_draft, blocks.width
    scores = score_drafts(blocks.logits, blocks.argmax, blocks.draft_ids)
    ids = pad_rows(blocks.draft_ids, cu, width, -1).to(torch.int64)
    target_ids = pad_rows(blocks.argmax, cu, width, -1)
    is_match = pad_rows(scores.is_match, cu, width, False)
    regret = pad_rows(scores.regret, cu, width, torch.inf)
    num_draft = ((ids >= 0) & (ids < blocks.logits.shape[1])).cumprod(1).sum(1)

    protected = _holds(ids, rows.protected_ids) | _holds(target_ids, rows.protected_ids)
    refused = protected if rows.in_scope is None else protected | ~rows.in_scope
    regret = regret.masked_fill(refused, torch.inf)

    verdict = select_prefix(
        regret, is_match, num_draft, rows.remaining, rows.gate, rows.block_cap, rows.pricing
    )
    stop = stop_reason(
        regret,
        is_match,
        num_draft,
        verdict,
        rows.remaining,
        rows.gate,
        rows.block_cap,
        protected,
        rows.pricing,
    )
    position = torch.arange(width, device=ids.device)
    kept_exception = (position < verdict.accepted.unsqueeze(1)) & ~is_match
    rewrite = unpad_rows(kept_exception & ~rows.shadow.unsqueeze(1), cu, blocks.argmax.shape[0])
    blocks.argmax.copy_(torch.where(rewrite, blocks.draft_ids.to(torch.int64), blocks.argmax))
    return Outcome(
        num_draft=num_draft,
        accepted=verdict.accepted,
        strict_accepted=strict_prefix(is_match, num_draft),
        exceptions=verdict.exceptions,
        reused=verdict.reused,
        stop=stop,
        charged=verdict.charged,
        exception_regret=torch.where(kept_exception, regret.to(torch.float64), -1.0),
        target_ids=target_ids,
    )


def _holds(ids: Tensor, sets: Tensor) -> Tensor:
    """[R, K] bool: does row r's set [R, S] (padded with -1) hold the id? Padding ids (-1) never do."""
    return ((ids.unsqueeze(2) == sets.unsqueeze(1)) & (ids >= 0).unsqueeze(2)).any(2)
