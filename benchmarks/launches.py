"""How many device operations a step of ours adds to vLLM's own; counted on a CPU, where no GPU is needed.

Counted is what the seams' functions run: PyTorch operators that launch work (copies and fills too; not views
and not allocations), copies from the host, and launches of our Triton kernels. An operator that needs more
than one kernel on a GPU counts as one. Nothing is timed, and no kernel runs.

    python -m benchmarks.launches

The table goes to stderr; the last line of stdout is the result, one JSON object: per runner and setting the
operations of a step whose batch is the one before's, then the same where a request has come and one has gone.
V2's gumbel needs vLLM to believe in Triton (tests/triton_cpu); where it does not, the figure is null.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.device_path import device_path
from benchmarks.stand_in_steps import Rows, Server, V1Steps, V2Steps
from vllm_asd.config import AsdConfig

SETTINGS: dict[str, Server] = {
    "default": Server(AsdConfig()),
    "detailed": Server(AsdConfig(), detailed=True),
    "scope": Server(AsdConfig(asd_scope="reasoning")),
    "phases": Server(AsdConfig(asd_scope="phases")),
    "guard": Server(AsdConfig(asd_guard="on")),
    "refill": Server(AsdConfig(asd_refill=0.1)),
    "gumbel": Server(AsdConfig(asd_sampling="gumbel")),
}
RUNNERS: dict[str, type[V1Steps | V2Steps]] = {"v1": V1Steps, "v2": V2Steps}
_ALLOCATIONS = ("empty", "new_empty")


class _Operators(TorchDispatchMode):
    """Counts what PyTorch would launch."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        with self:
            # Under inference mode an operator made of others arrives whole.
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        if not _is_view(func) and not func._schema.name.partition("::")[2].startswith(_ALLOCATIONS):
            self._found[str(func)] += 1
        return func(*args, **(kwargs or {}))


def _is_view(func: Any) -> bool:
    """Whether an operator returns its argument's memory without writing to it."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


class OperationCount:
    """Counts what the functions of one seam add to a step.

    Attributes:
        found: By operator or kernel.
    """

    def __init__(self) -> None:
        """Start at nothing."""
        self.found: Counter[str] = Counter()
        self._depth = 0

    def watch(self, holder: object, name: str) -> None:
        """Count what a method runs from now on; a watched method within another counts once."""
        original: Callable[..., Any] = getattr(holder, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return original(*args, **kwargs)
            self._depth += 1
            try:
                with _Operators(self.found):
                    return original(*args, **kwargs)
            finally:
                self._depth -= 1

        setattr(holder, name, watched)


def count(runner: str, server: Server) -> tuple[Counter[str], Counter[str]]:
    """Run three steps of a batch; count the third, then one whose batch has changed."""
    counts = OperationCount()
    with device_path(
        lambda launch: counts.found.update([launch.kernel]), lambda: counts.found.update(["copy from host"])
    ):
        steps = RUNNERS[runner](server)
        seam, verifier = steps.seam, steps.seam.verifier
        for name in ("start_step", "release", "admit", "begin", "finish"):
            counts.watch(verifier, name)
        for name in ("relax", "couple"):
            counts.watch(seam, name)
        is_sampled = server.config.asd_sampling == "gumbel"

        def step(number: int, first: int) -> Counter[str]:
            ids = [f"r{row}" for row in range(first, first + 4)]
            counts.found.clear()
            verifier.start_step(number, number - 2)
            verifier.release(f"r{row}" for row in range(first))
            for request_id in ids:
                verifier.admit(request_id, server.config.limits, [0], [5, 6], sampled=is_sampled)
            sampled = frozenset(ids) if is_sampled else frozenset()
            steps.step(Rows(ids, [server.shape.max_num_draft_tokens] * 4, sampled))
            return counts.found.copy()

        step(0, 0)
        step(1, 0)
        return step(2, 0), step(3, 1)


def main() -> None:
    """Count every setting and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", action="store_true", help="list the operations of a steady step")
    args = parser.parse_args()
    result: dict[str, dict[str, int | None]] = {}
    with torch.inference_mode():
        for runner in RUNNERS:
            steady: dict[str, int | None] = result.setdefault(runner, {})
            changed: dict[str, int | None] = result.setdefault(f"{runner}_batch_changed", {})
            for name, server in SETTINGS.items():
                try:
                    found = count(runner, server)
                except ImportError:
                    steady[name] = changed[name] = None
                    continue
                steady[name], changed[name] = (sum(counter.values()) for counter in found)
                print(f"{runner} {name:<9} {steady[name]:>3}  changed {changed[name]:>3}", file=sys.stderr)
                if args.operations:
                    print(f"  {dict(found[0])}\n  changed {dict(found[1])}", file=sys.stderr)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
