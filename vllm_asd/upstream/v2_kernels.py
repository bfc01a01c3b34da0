"""Worker, Model Runner V2: the rule stands between vLLM's two rejection kernels.

The first kernel leaves, per row of logits and per block of the vocabulary, the maximum and its token; the
second combines the blocks to the target's argmax and compares it with the draft. At approved positions the
winning block's token is rewritten to the draft token. The logits are not read a second time, and the sampled
rows, the logprobs and the bonus token stay vLLM's.

What is read of vLLM's tensors, and which elements it leaves unwritten (``new_empty``):

- ``target_local_max`` [N, B]: unwritten in rows whose place in the block is K or more, the bonus row of a
  full block (0.33: in every bonus row); in sampled rows it is the maximum as well.
- ``target_local_argmax`` [N, B]: unwritten there, and in all rows of sampled requests.
- ``target_logits`` [N, V], ``draft_sampled`` [N] (-1: never to be accepted), ``cu_num_logits`` [R + 1]: all
  written. Under adaptive verification only the device's ``cu_num_logits`` is right, which is the one read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from vllm_asd.kernels import MaximaBlocks
from vllm_asd.upstream.patching import Patch

REJECTION_KERNEL = Patch(
    target="vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils:_rejection_kernel",
    parameters=(
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

    def relax(self, blocks: MaximaBlocks) -> None:
        """Rewrite ``blocks.block_argmax`` in place at the approved positions."""


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
    relaxer.relax(
        MaximaBlocks(
            logits=launch["target_logits_ptr"],
            block_max=launch["target_local_max_ptr"],
            block_argmax=launch["target_local_argmax_ptr"],
            draft_sampled=launch["draft_sampled_ptr"],
            cu_num_logits=launch["cu_num_logits_ptr"],
        )
    )
