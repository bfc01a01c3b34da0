"""Compile every Triton kernel of the package to machine code, without a GPU.

python -m tests.v2.compile_kernels
"""

import itertools
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vllm_asd.kernels import triton_charge, triton_detail, triton_verify

TARGETS = [GPUTarget("cuda", capability, 32) for capability in (80, 90, 100)]

TYPES = {
    "table_ptr": "*fp64",
    "logits_ptr": "*bf16",
    "argmax_ptr": "*i64",
    "max_ptr": "*fp32",
    "nan_ptr": "*i8",
    "draft_ids_ptr": "*i32",
    "cu_ptr": "*i32",
    "accounts_ptr": "*fp64",
    "slots_ptr": "*i64",
    "words_ptr": "*i32",
    "set_ptr": "*i64",
    "closed_ptr": "*u8",
    "in_scope_ptr": "*u8",
    "largest_regret": "fp32",
    "spent_ptr": "*fp64",
    "before_ptr": "*fp64",
    "charged_ptr": "*fp64",
    "emitted_ptr": "*i64",
}
# What V1 and a server without scope or guard hand over is None, which Triton takes for a constant.
V1 = {"MAXIMA": False, "max_ptr": None, "nan_ptr": None, "NUM_BLOCKS": 1}
V2 = {"MAXIMA": True, "NUM_BLOCKS": 32}


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
    for runner, restricted, realized in itertools.product((V1, V2), (False, True), (False, True)):
        constants = {**runner, "HAS_CLOSED": restricted, "HAS_SCOPE": restricted, "REALIZED": realized}
        if not restricted:
            constants |= {"closed_ptr": None, "in_scope_ptr": None}
        count += compile_one(triton_verify._decide_kernel, TYPES, {**constants, "WIDTH": 8}, 1)
    constants = {**V2, "HAS_CLOSED": True, "HAS_SCOPE": True, "REALIZED": True, "WIDTH": 128}
    count += compile_one(triton_verify._decide_kernel, TYPES, constants, 4)
    count += compile_one(triton_verify._nan_kernel, TYPES, {"BLOCK": 8192, "NUM_BLOCKS": 32}, 4)
    for maxima in (False, True):
        constants = {"MAXIMA": maxima, "WIDTH": 8, "BLOCK": 8192}
        count += compile_one(triton_detail._detail_kernel, TYPES, constants, 4)
    for refills in (False, True):
        constants = {"REFILLS": refills, "BLOCK": 128} | ({} if refills else {"emitted_ptr": None})
        count += compile_one(triton_charge._charge_kernel, TYPES, constants, 4)
    print(f"compiled {count} kernels")


if __name__ == "__main__":
    main()
