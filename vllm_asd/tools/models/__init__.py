"""Small local models for the demo, the tests and measurements on a CPU.

    python -m vllm_asd.tools.models                     # prepare all of them and print where they are

Each `prepare_*` function returns the folder of a model in Hugging Face layout, made once and kept in the
user's cache.
"""

from vllm_asd.tools.models.cache import default_cache_dir
from vllm_asd.tools.models.low_precision import prepare_low_precision_copy
from vllm_asd.tools.models.smollm2 import prepare_smollm2
from vllm_asd.tools.models.tiny_llama import prepare_tiny_llama, prepare_tiny_llama_drafter

__all__ = [
    "default_cache_dir",
    "prepare_low_precision_copy",
    "prepare_smollm2",
    "prepare_tiny_llama",
    "prepare_tiny_llama_drafter",
]
