"""Worker, Model Runner V2, ``asd_sampling: "gumbel"``: sampled requests verified against a sample.

As on V1 (:mod:`.v1_gumbel`), with the noise that vLLM's sampler itself draws for the request's seed and the
position. Where nothing is relaxed, a request therefore emits what it would without speculation. The bonus
token is taken from the same logits, since vLLM's kernels then see a greedy request.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_asd.batch import CoupledRows
from vllm_asd.upstream.patching import Patch, PatchError

REJECTION_SAMPLE = Patch(
    target="vllm.v1.worker.gpu.spec_decode.rejection_sampler:rejection_sample",
    parameters=(
        "target_logits",
        "pos",
        "idx_mapping",
        "expanded_idx_mapping",
        "expanded_local_pos",
        "temperature",
        "seed",
    ),
    why="takes the logits after temperature, top-k and top-p, and the temperature that says who is greedy; "
    'applied with asd_sampling="gumbel" only',
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    hot=True,
    exact=False,
)


def require_noise() -> None:
    """Look for what :func:`perturb` needs, at start.

    Raises:
        PatchError: The installed vLLM draws its noise otherwise.
    """
    try:
        import vllm_asd.upstream.device.gumbel  # noqa: F401
    except ImportError as error:
        raise PatchError(
            f"asd_sampling='gumbel' needs the noise of vLLM's sampler ({error}): set asd_sampling to 'off'"
        ) from None


def perturb(arguments: dict[str, Any], coupled: CoupledRows, fresh: bool) -> None:
    """Put noise on the coupled requests' logits and present them as greedy.

    Args:
        arguments: Those of ``rejection_sample``; changed in place, its tensors are not.
        coupled: Which of the chunk's requests.
        fresh: Whether a position that is verified again gets other noise than before.
    """
    from vllm_asd.upstream.device.gumbel import add_seeded_noise

    temperature = arguments["temperature"]
    by_request = torch.zeros_like(temperature, dtype=torch.int32)
    by_request.index_copy_(0, arguments["idx_mapping"].to(torch.int64), coupled.mask.to(torch.int32))
    arguments["target_logits"] = add_seeded_noise(
        arguments["target_logits"],
        arguments["expanded_idx_mapping"],
        by_request,
        arguments["seed"],
        arguments["pos"],
        arguments["expanded_local_pos"],
        fresh,
        arguments.get("use_fp64", False),
    )
    arguments["temperature"] = temperature.masked_fill(by_request != 0, 0.0)
