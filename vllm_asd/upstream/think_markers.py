"""The model's think tokens, from vLLM's reasoning configuration."""

from __future__ import annotations

from typing import Any

from vllm_asd.config import AsdConfigError
from vllm_asd.phase import ThinkMarkers


def think_markers(vllm_config: Any, scope: str) -> ThinkMarkers:
    """Read the ids that open and close reasoning.

    Args:
        vllm_config: vLLM's.
        scope: The value of ``asd_scope`` that needs them.

    Raises:
        AsdConfigError: vLLM has no reasoning configuration, or a marker is more than one token.
    """
    reasoning = getattr(vllm_config, "reasoning_config", None)
    start = getattr(reasoning, "reasoning_start_token_ids", None)
    end = getattr(reasoning, "natural_reasoning_end_token_ids", None)
    if not start or not end:
        raise AsdConfigError(
            f"asd_scope={scope!r} needs the model's think tokens: "
            "start vLLM with --reasoning-parser, or set asd_scope to 'all'"
        )
    if len(start) != 1 or len(end) != 1:
        raise AsdConfigError(
            f"asd_scope={scope!r} needs think markers of one token each, this model's take "
            f"{len(start)} and {len(end)}: set asd_scope to 'all'"
        )
    return ThinkMarkers(start[0], end[0])
