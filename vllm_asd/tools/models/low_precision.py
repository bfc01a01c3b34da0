"""A model's own weights at lower precision: a drafter whose mismatches are mostly near-ties."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_asd.tools.models.cache import make_once

if TYPE_CHECKING:
    import torch

_GROUP = 32


def prepare_low_precision_copy(model_dir: Path, cache_dir: Path, bits: int = 5) -> Path:
    """Copy a model with its matrices rounded to `bits` bits, stored as they were.

    Every matrix but the embedding is rounded symmetrically in groups of 32 along its rows, one scale each;
    norms and the embedding (tied to the output head in small models) stay exact. For SmolLM2-135M-Instruct,
    measured along its own greedy answers (6 prompts, 720 tokens, fp32):

    | bits | argmax agrees | median regret where it doesn't |
    |---|---|---|
    | 3 | .43 | 3.44 |
    | 4 | .72 | 1.03 |
    | 5 | .86 | 0.40 |
    | 6 | .92 | 0.24 |
    | 8 | .98 | 0.05 |

    Args:
        model_dir: The model to copy, with its weights in `model.safetensors`.
        cache_dir: Where to keep the copy.
        bits: Precision, from 3 (a poor drafter) to 8 (hardly any mismatch).

    Returns:
        The copy's folder.
    """

    def build(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        shutil.copytree(model_dir, folder, dirs_exist_ok=True)
        weights = folder / "model.safetensors"
        rounded = {name: _round_weight(name, tensor, bits) for name, tensor in load_file(weights).items()}
        save_file(rounded, weights, metadata={"format": "pt"})

    return make_once(cache_dir, f"{model_dir.name}-int{bits}", build)


def _round_weight(name: str, tensor: "torch.Tensor", bits: int) -> "torch.Tensor":
    if tensor.ndim != 2 or "embed" in name or "lm_head" in name:
        return tensor
    return round_to_bits(tensor, bits)


def round_to_bits(weight: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Round symmetrically to signed integers of `bits` bits, one scale for each 32 values of a row.

    Args:
        weight: [out, in], any float dtype; `in` is a multiple of 32.
        bits: Width of the integers; they run from -(2^(bits-1) - 1) to 2^(bits-1) - 1.

    Returns:
        [out, in], same dtype.
    """
    groups = weight.float().unflatten(1, (-1, _GROUP))
    largest = 2 ** (bits - 1) - 1
    scale = (groups.abs().amax(dim=-1, keepdim=True) / largest).clamp_min(1e-12)
    rounded: torch.Tensor = (groups / scale).round() * scale
    return rounded.flatten(1).to(weight.dtype)
