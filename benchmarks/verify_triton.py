"""What ASD adds to a verification step of Model Runner V2, on a GPU: strict against ASD, and the floor.

With vLLM installed both sides run its ``rejection_sample``; without, a stand-in of the same shape: one pass
that leaves block maxima, then the comparison. The ASD side is all that the plugin does between and around:
looking for NaN in near misses, deciding, charging, and sending the report off.

    python benchmarks/verify_triton.py --output benchmarks/results/verify-gpu.json

Device times are taken while the host runs ahead, as it does in a serving step; host times are what the calls
take to enqueue. Progress goes to stderr; the last line of stdout is the result, one JSON object. On a CPU the
kernels can only be interpreted (``TRITON_INTERPRET=1``), which shows that this runs and measures nothing: the
result then says ``"measured": false``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_asd import AsdConfig
from vllm_asd.kernels import Column
from vllm_asd.kernels.blocks import VOCAB_BLOCK
from vllm_asd.upstream.v2_kernels import REJECTION_KERNEL, RelaxedRejectionKernel
from vllm_asd.upstream.v2_runner import V2Seam
from vllm_asd.verification import DraftShape, Verifier

SCHEMA = "vllm-asd/benchmark-verify-triton/1"
# Enough never to run out while measuring: an exhausted request would cost less.
CONFIG = AsdConfig(asd_budget=1e9, asd_gate=0.25, asd_block_cap=2)


class Step(NamedTuple):
    """One step's inputs: logits [N, V], V2's drafts [N], and where each request's rows begin [R + 1]."""

    logits: Tensor
    draft_sampled: Tensor
    cu_num_logits: Tensor
    num_draft: int


def make_step(num_rows: int, num_draft: int, vocab_size: int, dtype: torch.dtype, device: str) -> Step:
    """Random logits; four drafts of five are the target's argmax, the others its second choice."""
    generator = torch.Generator(device).manual_seed(0)
    width = num_draft + 1
    logits = torch.empty(num_rows * width, vocab_size, dtype=dtype, device=device)
    for chunk in logits.split(256):
        chunk.copy_(torch.randn(chunk.shape, generator=generator, device=device))
    best = torch.cat([chunk.topk(2).indices for chunk in logits.split(256)])
    is_second = torch.rand(len(best), generator=generator, device=device) < 0.2
    drafts = best.gather(1, is_second.long().unsqueeze(1)).squeeze(1).to(torch.int32).roll(1)
    cu = torch.arange(0, len(best) + 1, width, dtype=torch.int32, device=device)
    return Step(logits, drafts, cu, num_draft)


@triton.jit  # type: ignore[untyped-decorator]
def _scan_kernel(  # type: ignore[no-untyped-def]
    value_ptr,
    id_ptr,
    logits_ptr,
    logits_stride,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(
        logits_ptr + row * logits_stride + token, mask=token < vocab_size, other=float("-inf")
    ).to(tl.float32)
    value, index = tl.max(logits, axis=0, return_indices=True)
    tl.store(value_ptr + row * num_blocks + block, value)
    tl.store(id_ptr + row * num_blocks + block, (block * BLOCK + index).to(tl.int64))


def scan_blocks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The one pass over the logits, as vLLM's first kernel makes it.

    Args:
        logits: [N, V] float.

    Returns:
        The maxima [N, B] float32 and their tokens [N, B] int64.
    """
    num_rows, vocab_size = logits.shape
    num_blocks = triton.cdiv(vocab_size, VOCAB_BLOCK)
    value = logits.new_empty(num_rows, num_blocks, dtype=torch.float32)
    token_id = logits.new_empty(num_rows, num_blocks, dtype=torch.int64)
    _scan_kernel[(num_rows, num_blocks)](
        value, token_id, logits, logits.stride(0), vocab_size, num_blocks, BLOCK=VOCAB_BLOCK
    )
    return value, token_id


class StandIn:
    """The native path's shape in plain Triton and torch, where vLLM is not installed."""

    name = "stand-in"

    def __init__(self, step: Step) -> None:
        """Hold the step; ``kernel`` is launched as vLLM's second kernel is."""
        self.step = step
        self.arg_names = REJECTION_KERNEL.parameters
        self.kernel: Any = self

    def __getitem__(self, grid: object) -> Callable[..., None]:
        """Launch the comparison."""
        del grid
        return self._compare

    def _compare(self, logits: Tensor, ids: Tensor, values: Tensor, drafts: Tensor, cu: Tensor) -> None:
        del logits
        best = values.argmax(1, keepdim=True)
        self.sampled = ids.gather(1, best).view(cu.shape[0] - 1, -1)
        match = self.sampled[:, :-1] == drafts.view(self.sampled.shape)[:, 1:]
        self.num_sampled = match.cumprod(1).sum(1, dtype=torch.int32) + 1

    def sample(self) -> tuple[Any, Tensor]:
        """One verification."""
        step = self.step
        values, ids = scan_blocks(step.logits)
        self.kernel[(step.cu_num_logits.shape[0] - 1,)](
            step.logits, ids, values, step.draft_sampled, step.cu_num_logits
        )
        return SimpleNamespace(sampled_token_ids=self.sampled), self.num_sampled

    def use(self, kernel: Any) -> Any:
        """Exchange the second kernel; returns the one before."""
        before, self.kernel = self.kernel, kernel
        return before


class Vllm:
    """vLLM's own greedy path."""

    name = "vllm"

    def __init__(self, step: Step) -> None:
        """Prepare what ``rejection_sample`` takes besides the step."""
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

        self.module: Any = rejection_sampler_utils
        self.step = step
        device = step.logits.device
        width, num_logits = step.num_draft + 1, step.logits.shape[0]
        num_rows = num_logits // width
        rows = torch.arange(num_rows, device=device)
        self.mapping = (
            torch.arange(num_logits, device=device),
            rows,
            rows.repeat_interleave(width),
            torch.arange(width, dtype=torch.int32, device=device).repeat(num_rows),
            torch.zeros(num_rows, device=device),
            torch.zeros(num_rows, dtype=torch.int64, device=device),
        )

    def sample(self) -> tuple[Any, Tensor]:
        """One verification."""
        step = self.step
        sampled, num_sampled = self.module.rejection_sample(
            step.logits, None, step.draft_sampled, step.cu_num_logits, *self.mapping, step.num_draft
        )
        return SimpleNamespace(sampled_token_ids=sampled), num_sampled

    def use(self, kernel: Any) -> Any:
        """Exchange the second kernel; returns the one before."""
        before, self.module._rejection_kernel = self.module._rejection_kernel, kernel
        return before


def asd_side(native: StandIn | Vllm) -> Callable[[], Any]:
    """One step with the seam around it, as the runner's ``sample`` has it."""
    step = native.step
    ids = [f"request-{row}" for row in range(step.cu_num_logits.shape[0] - 1)]
    shape = DraftShape(step.num_draft, step.logits.shape[1])
    runner = SimpleNamespace(device=step.logits.device, dtype=step.logits.dtype)
    seam = V2Seam(runner, Verifier(CONFIG, runner.device, len(ids), shape))
    seam.warm_up()
    for request_id in ids:
        seam.verifier.admit(request_id, CONFIG.limits, stop_ids=[0])
    batch = SimpleNamespace(req_ids=ids)
    sample = seam.wrap_sample(lambda *_: native.sample())
    plain = native.use(None)
    native.use(plain)
    relaxed = RelaxedRejectionKernel(plain)

    def run() -> Any:
        native.use(relaxed)
        sample(None, batch, None)
        native.use(plain)
        return seam._report

    return run


class Clock:
    """Times one call, with a cold cache: what it costs the device and what it costs the host."""

    def __init__(self, device: str) -> None:
        """Allocate what pushes the logits out of the cache."""
        self.is_gpu = device == "cuda"
        self.flush = torch.empty(2**28 if self.is_gpu else 1, dtype=torch.uint8, device=device)

    def __call__(self, call: Callable[[], object]) -> tuple[float, float]:
        """Device and host time in microseconds; on a CPU both are wall time."""
        if not self.is_gpu:
            start = time.perf_counter_ns()
            call()
            wall = (time.perf_counter_ns() - start) / 1e3
            return wall, wall
        self.flush.zero_()
        # The device waits here while the host enqueues the call.
        torch.cuda._sleep(20_000_000)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        start = time.perf_counter_ns()
        call()
        host = (time.perf_counter_ns() - start) / 1e3
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3, host


def floor_us(step: Step, clock: Clock) -> float:
    """One pass over the logits at the bandwidth that a plain read of as many bytes reaches here."""
    flat = step.logits.view(-1)
    return statistics.median(clock(lambda: flat.amax())[0] for _ in range(10))


def run_case(num_rows: int, args: argparse.Namespace, clock: Clock, source: type) -> dict[str, Any]:
    """Measure one batch size: ABBA rounds after a warm-up."""
    step = make_step(num_rows, args.draft_tokens, args.vocab, getattr(torch, args.dtype), args.device)
    native = source(step)
    sides = (native.sample, asd_side(native))
    for side in (0, 1, 1, 0):
        sides[side]()
    times: tuple[list[tuple[float, float]], ...] = ([], [])
    ratios = []
    for _ in range(args.rounds):
        a1, b1, b2, a2 = (clock(sides[side]) for side in (0, 1, 1, 0))
        times[0].extend((a1, a2))
        times[1].extend((b1, b2))
        ratios.append((b1[0] + b2[0]) / (a1[0] + a2[0]))
    strict, asd = ([statistics.median(column) for column in zip(*side, strict=True)] for side in times)
    blocks = sides[1]().resolve()
    floor = floor_us(step, clock)
    return {
        "rows": num_rows,
        "strict_device_us": round(strict[0], 2),
        "asd_device_us": round(asd[0], 2),
        "ratio": round(statistics.median(ratios), 4),
        "strict_host_us": round(strict[1], 2),
        "asd_host_us": round(asd[1], 2),
        "floor_us": round(floor, 2),
        "asd_over_floor": round(asd[0] / floor, 4),
        "exceptions_per_block": float(blocks.column(Column.EXCEPTIONS).sum()) / num_rows,
    }


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256], help="batch sizes")
    parser.add_argument("--draft-tokens", type=int, default=7, help="K")
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the logits")
    parser.add_argument("--rounds", type=int, default=30, help="ABBA rounds per batch size")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--native", choices=("auto", "vllm", "stand-in"), default="auto")
    parser.add_argument("--output", type=Path, help="also write the result here")
    return parser.parse_args()


def choose_source(wanted: str) -> type:
    """Take vLLM's path where it can be had."""
    if wanted == "stand-in":
        return StandIn
    try:
        import vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils  # noqa: F401
    except ImportError:
        if wanted == "vllm":
            raise
        return StandIn
    return Vllm


def main() -> None:
    """Measure every batch size and print the result."""
    args = parse_args()
    source = choose_source(args.native)
    clock = Clock(args.device)
    is_gpu = clock.is_gpu
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "measured": is_gpu,
        "native": source.name,  # type: ignore[attr-defined]
        "device": torch.cuda.get_device_name() if is_gpu else platform.processor(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "draft_tokens": args.draft_tokens,
        "vocab_size": args.vocab,
        "logits_dtype": args.dtype,
        "cases": [],
    }
    with torch.inference_mode():
        for num_rows in args.rows:
            result["cases"].append(run_case(num_rows, args, clock, source))
            print(result["cases"][-1], file=sys.stderr, flush=True)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
