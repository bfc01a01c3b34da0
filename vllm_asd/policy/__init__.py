"""The acceptance rule of Approximate Speculative Decoding (Feng et al., arXiv 2608.03447) in plain tensors.

Imports no vLLM, directly or through others: the rule can be read, tested and replayed without an engine.
"""

from vllm_asd.policy.prefix import Verdict, select_prefix, strict_prefix
from vllm_asd.policy.pricing import Pricing
from vllm_asd.policy.stops import StopReason, stop_reason

__all__ = ["Pricing", "StopReason", "Verdict", "select_prefix", "stop_reason", "strict_prefix"]
