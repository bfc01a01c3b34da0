"""Compile the kernel that adds vLLM's noise to logits, without a GPU; vLLM must believe that it has Triton.

python -m tests.v2.compile_noise
"""

import itertools

from tests.v2.compile_kernels import compile_one
from vllm_asd.upstream.device import gumbel

TYPES = {
    "perturbed_ptr": "*fp32",
    "expanded_idx_mapping_ptr": "*i64",
    "coupled_ptr": "*i32",
    "seeds_ptr": "*i64",
    "pos_ptr": "*i64",
    "local_pos_ptr": "*i32",
}


def main() -> None:
    """Compile its four variants."""
    count = 0
    for fresh, float64 in itertools.product((False, True), repeat=2):
        constants = {"BLOCK": 1024, "FRESH": fresh, "USE_FP64": float64}
        count += compile_one(gumbel._perturb_kernel, TYPES, constants, 4)
    print(f"compiled {count} kernels")


if __name__ == "__main__":
    main()
