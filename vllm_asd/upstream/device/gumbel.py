"""Model Runner V2's own Gumbel noise, put on logits in place of being consumed by an argmax."""

from __future__ import annotations

import torch
from torch import Tensor
from vllm.triton_utils import tl, triton
from vllm.v1.worker.gpu.sample.gumbel import _log1p_neg_stable, murmur3_uniform32, murmur3_uniform64

from vllm_asd.kernels.triton_jit import jit

_BLOCK = 1024


@jit
def _perturb_kernel(  # type: ignore[no-untyped-def]
    perturbed_ptr,
    perturbed_stride,
    logits_ptr,
    logits_stride,
    expanded_idx_mapping_ptr,
    coupled_ptr,
    seeds_ptr,
    pos_ptr,
    local_pos_ptr,
    vocab_size,
    BLOCK: tl.constexpr,
    FRESH: tl.constexpr,
    USE_FP64: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocab_size
    logits = tl.load(logits_ptr + row * logits_stride + token, mask=mask, other=float("-inf"))
    logits = logits.to(tl.float32)
    request = tl.load(expanded_idx_mapping_ptr + row).to(tl.int64)
    # Padding rows have no request.
    coupled = tl.load(coupled_ptr + request, mask=request >= 0, other=0)
    if coupled != 0:
        seed = tl.load(seeds_ptr + request)
        pos = tl.load(pos_ptr + row).to(tl.int64)
        if FRESH:
            block_start = pos - tl.load(local_pos_ptr + row)
            seed = seed ^ ((block_start + 1) << 32)
        # As vLLM's gumbel_noised_argmax.
        if USE_FP64:
            uniform = murmur3_uniform64(seed, pos, token)
            logits = (logits.to(tl.float64) - tl.log(-tl.log(uniform))).to(tl.float32)
        else:
            uniform = murmur3_uniform32(seed, pos, token)
            logits = logits - tl.log(-_log1p_neg_stable(uniform))
    tl.store(perturbed_ptr + row * perturbed_stride + token, logits, mask=mask)


def add_seeded_noise(
    logits: Tensor,
    expanded_idx_mapping: Tensor,
    coupled: Tensor,
    seeds: Tensor,
    pos: Tensor,
    local_pos: Tensor,
    fresh: bool,
    float64: bool = False,
) -> Tensor:
    """Perturb the rows of coupled requests by the noise that vLLM's sampler draws there.

    Args:
        logits: [N, V], after temperature, top-k and top-p.
        expanded_idx_mapping: [N] int, each row's request; -1 in padding.
        coupled: [M] int32, by request: 1 to perturb, 0 to copy.
        seeds: [M] int64, by request.
        pos: [N] int, each row's position in its sequence.
        local_pos: [N] int, its position in its block.
        fresh: Whether a position that is verified again, in a later block, gets other noise.
        float64: Draw in double precision.

    Returns:
        [N, V] float32, a new tensor; the other rows hold the same values.
    """
    num_rows, vocab_size = logits.shape
    perturbed = torch.empty_like(logits, dtype=torch.float32)
    _perturb_kernel[(num_rows, triton.cdiv(vocab_size, _BLOCK))](
        perturbed,
        perturbed.stride(0),
        logits,
        logits.stride(0),
        expanded_idx_mapping.contiguous(),
        coupled,
        seeds,
        pos.contiguous(),
        local_pos.contiguous(),
        vocab_size,
        BLOCK=_BLOCK,
        FRESH=fresh,
        USE_FP64=float64,
    )
    return perturbed
