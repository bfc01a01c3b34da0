"""Worker, Model Runner V2: the rule stands between vLLM's two rejection kernels.

The first kernel leaves, per row of logits and per block of the vocabulary, the maximum and its token; the
second combines the blocks to the target's argmax and compares it with the draft. At approved positions the
winning block's token is rewritten to the draft token. The logits are not read a second time, and the sampled
rows, the logprobs and the bonus token stay vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor

from vllm_asd.kernels import BlockMaxima, DraftBlocks, align, put_back
from vllm_asd.kernels.blocks import VOCAB_BLOCK
from vllm_asd.upstream.patching import Patch

REJECTION_KERNEL = Patch(
    target="vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils:_rejection_kernel",
    parameters=(
        "sampled_ptr",
        "target_logits_ptr",
        "target_local_argmax_ptr",
        "target_local_max_ptr",
        "draft_sampled_ptr",
        "cu_num_logits_ptr",
    ),
    why="the only place that holds the block maxima and the drafts before they are compared",
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    hot=True,
    exact=False,
)


class Relaxer(Protocol):
    """Who decides; see :meth:`vllm_asd.upstream.v2_runner.V2Seam.relax`."""

    def relax(self, blocks: DraftBlocks) -> None:
        """Rewrite ``blocks.argmax`` in place at the approved positions."""


current: ContextVar[Relaxer | None] = ContextVar("vllm_asd_v2_seam", default=None)


class RelaxedRejectionKernel:
    """vLLM's kernel with the rule before it; without an open ASD step it is only the former."""

    def __init__(self, original: Any) -> None:
        """Wrap a Triton kernel, compiled or interpreted."""
        self._original = original
        self._names: tuple[str, ...] = tuple(original.arg_names)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """Prepare a launch on ``grid``, as Triton kernels do."""
        launch = self._original[grid]

        def relax_and_launch(*args: Any, **kwargs: Any) -> Any:
            relaxer = current.get()
            if relaxer is not None:
                _relax(relaxer, dict(zip(self._names, args, strict=False)) | kwargs)
            return launch(*args, **kwargs)

        return relax_and_launch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do as the kernel does when it is called without a grid: refuse."""
        return self._original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Be the kernel in everything else: vLLM's warm-up asks for more than launches."""
        return getattr(self._original, name)


def _relax(relaxer: Relaxer, launch: dict[str, Any]) -> None:
    """Let the rule decide on the arguments of one launch, and rewrite the block tokens in place."""
    local_max, local_argmax = launch["target_local_max_ptr"], launch["target_local_argmax_ptr"]
    cu_num_logits, width = launch["cu_num_logits_ptr"], launch["sampled_ptr"].shape[1]
    alignment = align(BlockMaxima(local_max, local_argmax), launch["draft_sampled_ptr"], cu_num_logits, width)
    relaxer.relax(
        DraftBlocks(
            logits=launch["target_logits_ptr"],
            argmax=alignment.argmax,
            draft_ids=alignment.draft_ids,
            cu_num_draft=cu_num_logits[1:],
            width=width,
        )
    )
    put_back(local_argmax, alignment)


def rehearse(relaxer: Relaxer, logits: Tensor, width: int) -> None:
    """Run the rule once as a step would, on a request of one token, so that all kernels are compiled.

    Args:
        relaxer: Ready for a step of one row.
        logits: [width, V], of a step's dtype; not read for what they say.
        width: As in :func:`_relax`.
    """
    num_blocks = -(-logits.shape[1] // VOCAB_BLOCK)
    ids = torch.zeros(width, dtype=torch.int64, device=logits.device)
    launch = {
        "sampled_ptr": ids.new_empty(1, width),
        "target_logits_ptr": logits,
        "target_local_argmax_ptr": ids.new_zeros(width, num_blocks),
        "target_local_max_ptr": logits.new_zeros(width, num_blocks, dtype=torch.float32),
        "draft_sampled_ptr": ids.to(torch.int32),
        "cu_num_logits_ptr": torch.arange(0, width + 1, width, dtype=torch.int32, device=logits.device),
    }
    _relax(relaxer, launch)
