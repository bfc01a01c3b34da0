"""Compile every Triton kernel of the package to machine code, without a GPU.

python -m tests.v2.compile_kernels
"""

import itertools
import re
import subprocess
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vllm_asd.kernels import triton_charge, triton_detail, triton_guards, triton_phases, triton_verify

TARGETS = [GPUTarget("cuda", capability, 32) for capability in (80, 90, 100)]

DRAFT_TYPES = {
    "table_ptr": "*fp64",
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
}
CHARGE_TYPES = {
    "spent_ptr": "*fp64",
    "before_ptr": "*fp64",
    "accounts_ptr": "*fp64",
    "slots_ptr": "*i64",
    "charged_ptr": "*fp64",
    "emitted_ptr": "*i32",
}

FOLLOW_TYPES = {
    "state_ptr": "*fp64",
    "slots_ptr": "*i64",
    "ids_ptr": "*i64",
    "num_tokens_ptr": "*i32",
    "discarded_ptr": "*u8",
    "table_ptr": "*fp64",
}
PHASE_TYPES = FOLLOW_TYPES | {
    "scope_ptr": "*u8",
    "draft_ids_ptr": "*i32",
    "cu_ptr": "*i32",
    "thinking_ptr": "*u8",
}


def compile_one(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], num_warps: int, logits: str = "*bf16"
) -> int:
    """Compile a kernel for every target; what `types` does not name is a 32-bit integer."""
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else {"logits_ptr": logits, **types}.get(name, "i32")
        for name in names
    }
    indices = {(names.index(name),): value for name, value in constants.items()}
    for target in TARGETS:
        source = ASTSource(fn=kernel, signature=signature, constexprs=indices)
        compiled = triton.compile(
            source, target=target, options={"num_warps": num_warps, "enable_fp_fusion": False}
        )
        usage = resource_usage(compiled.asm["cubin"])
        print(kernel.__name__, target.arch, logits, constants, usage)
        assert usage["STACK"] == usage["LOCAL"] == 0, "registers spilled"
    return len(TARGETS)


def resource_usage(cubin: bytes) -> dict[str, int]:
    """What one program takes: registers per thread, and bytes of memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", report)}


def absent(**pointers: bool) -> dict[str, None]:
    """The pointers that a launch has no tensor for: Triton takes them as constants."""
    return {f"{name}_ptr": None for name, is_there in pointers.items() if not is_there}


def main() -> None:
    """Compile all of them."""
    count = 0
    logits = ("*bf16", "*fp32")
    for maxima, has_scope, has_closed, realized in itertools.product((False, True), repeat=4):
        constants = {
            "MAXIMA": maxima,
            "HAS_SCOPE": has_scope,
            "HAS_CLOSED": has_closed,
            "REALIZED": realized,
            "WIDTH": 8,
            "NUM_BLOCKS": 32 if maxima else 1,
            **absent(max=maxima, nan=maxima, in_scope=has_scope, closed=has_closed),
        }
        for dtype in logits if not (has_scope or has_closed) else logits[:1]:
            count += compile_one(triton_verify._decide_kernel, DRAFT_TYPES, constants, 1, dtype)
        if has_scope and has_closed and realized:
            wide = {**constants, "WIDTH": 128}
            count += compile_one(triton_verify._decide_kernel, DRAFT_TYPES, wide, 4)
    for dtype in logits:
        nan_constants = {"BLOCK": 8192, "NUM_BLOCKS": 32}
        count += compile_one(triton_verify._nan_kernel, DRAFT_TYPES, nan_constants, 4, dtype)
        for maxima in (False, True):
            constants = {"MAXIMA": maxima, "WIDTH": 8, "BLOCK": 8192}
            count += compile_one(triton_detail._detail_kernel, DRAFT_TYPES, constants, 4, dtype)
    for refills in (False, True):
        constants = {"REFILLS": refills, "BLOCK": 128, **absent(emitted=refills)}
        count += compile_one(triton_charge._charge_kernel, CHARGE_TYPES, constants, 4)
    for first, second in itertools.product((False, True), repeat=2):
        constants = {"MAXIMA": first, "PER_PHASE": second, "WIDTH": 8}
        count += compile_one(triton_phases._scope_kernel, PHASE_TYPES, constants, 1)
        constants = {"HAS_NUM_TOKENS": first, "HAS_DISCARDED": second, "BLOCK": 32}
        constants |= absent(num_tokens=first, discarded=second)
        count += compile_one(triton_phases._follow_kernel, PHASE_TYPES, constants, 1)
        del constants["BLOCK"]
        count += compile_one(triton_guards._guard_kernel, FOLLOW_TYPES, constants, 1)
    constants = {"MAXIMA": True, "PER_PHASE": False, "WIDTH": 128}
    count += compile_one(triton_phases._scope_kernel, PHASE_TYPES, constants, 4)
    print(f"compiled {count} kernels")


if __name__ == "__main__":
    main()
