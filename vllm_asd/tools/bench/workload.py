"""What is sent: prompts as `vllm bench serve` reads them, and a trace's arrivals and lengths."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vllm_asd.tools.bench.settings import BenchError


@dataclass(frozen=True)
class Arrivals:
    """A trace, scaled to a machine.

    Attributes:
        rate: Requests per second.
        burstiness: Shape of the gamma distribution of the gaps, as `vllm bench serve --burstiness`.
        output_tokens: By request.
        factor: How many times slower than the trace.
    """

    rate: float
    burstiness: float
    output_tokens: tuple[int, ...]
    factor: float


def read_prompts(path: Path) -> list[str]:
    """The prompts of a JSONL file with the field `prompt`; empty ones are left out.

    Raises:
        BenchError: Not readable, or no prompt in it.
    """
    prompts = []
    number = 0
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):  # noqa: B007
            row = json.loads(line) if line.strip() else {}
            if row.get("prompt"):
                prompts.append(str(row["prompt"]))
    except OSError as error:
        raise BenchError(f"--data: can't read {path} ({error.strerror})") from None
    except (ValueError, RecursionError, AttributeError):
        raise BenchError(f"--data: line {number} of {path} is no JSON object") from None
    if not prompts:
        raise BenchError(f'--data: no line of {path} has a "prompt"')
    return prompts


def write_prompts(prompts: Sequence[str], output_tokens: Sequence[int], path: Path) -> None:
    """Write what `--dataset-name custom` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(prompts, output_tokens, strict=True)
    lines = (json.dumps({"prompt": prompt, "output_tokens": tokens}) for prompt, tokens in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_trace(path: Path, limit: int) -> list[tuple[float, int, int]]:
    """(arrival in s, input tokens, output tokens) of a trace's first requests, also from a field `meta`.

    Raises:
        BenchError: Not readable, a field is missing, or fewer than 3 requests.
    """
    requests = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines()[:limit]:
            row = json.loads(line)
            row = {**row, **(row.get("meta") or {})}
            requests.append((float(row["arrival_s"]), int(row["input_tokens"]), int(row["output_tokens"])))
    except OSError as error:
        raise BenchError(f"--trace: can't read {path} ({error.strerror})") from None
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise BenchError(
            f"--trace: each line of {path} needs arrival_s, input_tokens and output_tokens"
        ) from None
    if len(requests) < 3:
        raise BenchError(f"--trace: {path} holds fewer than 3 requests")
    return requests


def scale_trace(
    trace: Sequence[tuple[float, int, int]], max_tokens: int, tokens_per_s: float, load: float
) -> Arrivals:
    """Fit a trace to a machine: its shape stays, its rate and lengths shrink.

    Args:
        trace: From :func:`read_trace`.
        max_tokens: What the longest output becomes; the others in proportion.
        tokens_per_s: Output tokens per second that the plain server can do.
        load: Share of that to ask for.

    Raises:
        BenchError: All requests arrive at once.
    """
    longest = max(output for _, _, output in trace)
    outputs = tuple(max(1, round(output * max_tokens / longest)) for _, _, output in trace)
    gaps = np.diff([arrival for arrival, _, _ in trace])
    if gaps.mean() <= 0 or gaps.std() <= 0:
        raise BenchError("--trace: the arrivals have no spread")
    rate = load * tokens_per_s / float(np.mean(outputs))
    burstiness = float((gaps.mean() / gaps.std()) ** 2)
    return Arrivals(rate, burstiness, outputs, factor=float(1 / gaps.mean() / rate))


def match_lengths(prompts: Sequence[str], trace: Sequence[tuple[float, int, int]]) -> list[str]:
    """Give each request of the trace a prompt of the same rank in length: long where the trace's is long."""
    by_length = sorted(prompts, key=len)
    ranks = np.argsort(np.argsort([tokens for _, tokens, _ in trace], kind="stable"))
    return [by_length[int(rank * len(by_length) / len(trace))] for rank in ranks]
