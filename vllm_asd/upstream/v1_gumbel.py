"""Worker, V1 model runner, ``asd_sampling: "gumbel"``: sampled requests verified against a sample.

vLLM's rejection sampler takes the argmax for greedy requests, and draws for the others in another kernel. A
coupled request is presented as a greedy one whose logits carry Gumbel noise: their argmax is then a sample
of the target, and the rule of :mod:`.v1_runner` reads regret off the same logits. vLLM's logprobs are made of
the logits without noise, its bonus token is drawn as ever. The proof is in docs/sampling.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm_asd.batch import CoupledRows
from vllm_asd.kernels import add_gumbel_noise
from vllm_asd.upstream.patching import Patch

REJECTION_SAMPLE = Patch(
    target="vllm.v1.sample.rejection_sampler:rejection_sample",
    parameters=("num_draft_tokens", "target_logits", "sampling_metadata"),
    why="takes the logits after temperature, top-k and top-p, and decides which requests are greedy; "
    'applied with asd_sampling="gumbel" only',
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    hot=True,
    exact=False,
)


def perturb(arguments: dict[str, Any], coupled: CoupledRows) -> None:
    """Put noise on the coupled requests' logits and present them as greedy.

    Args:
        arguments: Those of ``rejection_sample``; changed in place, its tensors are not.
        coupled: Which of the step's requests.
    """
    metadata = arguments["sampling_metadata"]
    arguments["target_logits"] = add_gumbel_noise(
        arguments["target_logits"],
        arguments["num_draft_tokens"],
        coupled.flags,
        metadata.generators,
        arguments.get("use_fp64_gumbel", False),
    )
    arguments["sampling_metadata"] = replace(
        metadata,
        temperature=metadata.temperature.masked_fill(coupled.mask, 0.0),
        all_greedy=all(coupled.flags),
        all_random=False,
        # What a request with a seed draws must not depend on who is beside it.
        generators={row: made for row, made in metadata.generators.items() if not coupled.flags[row]},
    )
