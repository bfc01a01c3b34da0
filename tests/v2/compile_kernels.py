"""Compile every Triton kernel of the package to machine code, without a GPU.

python -m tests.v2.compile_kernels
"""

import itertools
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vllm_asd.kernels import triton_blocks, triton_charge, triton_verify

TARGETS = [GPUTarget("cuda", capability, 32) for capability in (80, 90, 100)]

BLOCK_TYPES = {
    "value_ptr": "*fp32",
    "id_ptr": "*i64",
    "best_ptr": "*i64",
    "argmax_ptr": "*i64",
    "draft_sampled_ptr": "*i32",
    "cu_num_logits_ptr": "*i32",
    "cu_num_draft_ptr": "*i32",
    "draft_ids_ptr": "*i64",
    "free_ptr": "*u8",
    "largest_regret": "fp32",
}
CHARGE_TYPES = {
    "spent_ptr": "*fp64",
    "accounts_ptr": "*fp64",
    "slots_ptr": "*i64",
    "charged_ptr": "*fp64",
    "emitted_ptr": "*i64",
}
VERIFY_TYPES = {
    "counts_ptr": "*i64",
    "stop_ptr": "*i8",
    "charged_ptr": "*fp64",
    "exception_regret_ptr": "*fp64",
    "target_ids_ptr": "*i64",
    "argmax_ptr": "*i64",
    "draft_ids_ptr": "*i32",
    "cu_num_draft_ptr": "*i32",
    "remaining_ptr": "*fp64",
    "gate_ptr": "*fp64",
    "block_cap_ptr": "*i32",
    "shadow_ptr": "*u8",
    "protected_ids_ptr": "*i64",
    "in_scope_ptr": "*u8",
}


def compile_one(kernel: Any, types: dict[str, str], constants: dict[str, Any], num_warps: int) -> int:
    """Compile a kernel for every target; what `types` does not name is a 32-bit integer."""
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else {"logits_ptr": "*bf16", **types}.get(name, "i32")
        for name in names
    }
    indices = {(names.index(name),): value for name, value in constants.items()}
    for target in TARGETS:
        source = ASTSource(fn=kernel, signature=signature, constexprs=indices)
        compiled = triton.compile(
            source, target=target, options={"num_warps": num_warps, "enable_fp_fusion": False}
        )
        assert compiled.asm["cubin"]
    return len(TARGETS)


def main() -> None:
    """Compile all of them."""
    count = 0
    for has_scope, realized in itertools.product((False, True), repeat=2):
        constants = {"HAS_SCOPE": has_scope, "REALIZED": realized, "WIDTH": 8}
        count += compile_one(triton_verify._verify_kernel, VERIFY_TYPES, constants, 1)
    constants = {"HAS_SCOPE": True, "REALIZED": True, "WIDTH": 128}
    count += compile_one(triton_verify._verify_kernel, VERIFY_TYPES, constants, 4)
    count += compile_one(triton_blocks._align_kernel, BLOCK_TYPES, {"WIDTH": 8, "NUM_BLOCKS": 32}, 4)
    count += compile_one(triton_blocks._nan_kernel, BLOCK_TYPES, {"BLOCK": 8192}, 4)
    count += compile_one(triton_blocks._scan_kernel, BLOCK_TYPES, {"BLOCK": 8192}, 4)
    for refills in (False, True):
        constants = {"REFILLS": refills, "BLOCK": 128}
        count += compile_one(triton_charge._charge_kernel, CHARGE_TYPES, constants, 4)
    print(f"compiled {count} kernels")


if __name__ == "__main__":
    main()
