"""What `asd_sampling: "gumbel"` does to the law of sampled requests, measured and in closed form.

A target with a small vocabulary, whose laws are known exactly, decoded through vLLM's real V1 rejection
sampler two tokens at a time, by the million. Three questions:

- exact: with no exception possible, is the law of two tokens the target's? Chi-square, with what it could
  have seen, beside vLLM's own path on the same chain, for drafts that are fixed and that were sampled.
- curve: how far does the law move as the budget grows, and what does that buy?
- cost: what does a verification step take, against vLLM's own for sampled requests?

    PYTHONPATH=. python benchmarks/sampling_law.py --picture docs/sampling.png

The last line of stdout is the result, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy import optimize, stats

from tests.toy_chain import NEVER, ToyChain, boosted, joint_law, sampling_law
from tests.v1_step import Runner, attach, metadata, sampling
from vllm_asd.config import AsdConfig

mpl.use("Agg")
from matplotlib import pyplot as plt

SCHEMA = "vllm-asd/benchmark-sampling-law/1"
VOCAB, ROWS, NUM_DRAFTS = 6, 4096, 2
ALPHA, POWER = 1e-4, 0.99
PROGRESS = Console(stderr=True)
BUDGETS = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
GATES = (0.125, 0.25, 0.5)
UNLIMITED = 50.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000, help="for each exact law")
    parser.add_argument("--curve-pairs", type=int, default=200_000, help="for each point of the curve")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    table = torch.randn(VOCAB, VOCAB) * 1.5
    draft_table = table + torch.randn(VOCAB, VOCAB)
    drafters = {"fixed": draft_table.argmax(1), "sampled": draft_table.softmax(1)}
    result = {
        "schema": SCHEMA,
        "exact": [
            measure_exact(table, drafters[kind], kind, couple, arguments.pairs)
            for kind in drafters
            for couple in (True, False)
        ],
        "curve": [
            measure_point(table, drafters["fixed"], gate, budget, arguments.curve_pairs)
            for gate, budget in [(UNLIMITED, b) for b in BUDGETS] + [(g, UNLIMITED) for g in GATES]
        ],
        "cost": [measure_cost(num_rows) for num_rows in (1, 16)],
    }
    if arguments.picture is not None:
        draw(result, arguments.picture)
    print(json.dumps(result))


def measure_exact(
    table: torch.Tensor, drafter: torch.Tensor, kind: str, couple: bool, pairs: int
) -> dict[str, Any]:
    """Compare the joint law of two tokens with the target's where nothing may be relaxed."""
    config = AsdConfig(asd_sampling="gumbel", asd_gate=NEVER)
    path = "gumbel" if couple else "vLLM"
    counts, accepted = _count(ToyChain(table, drafter, ROWS, config, couple=couple), pairs, f"{path}, {kind}")
    law = joint_law(table)
    number, cells = counts.sum(), counts.size
    return {
        "path": path,
        "drafts": kind,
        "pairs": int(number),
        "p_value": float(stats.chisquare(counts.ravel(), law.ravel() * number).pvalue),
        "detectable_w": detectable(number, cells - 1),
        "total_variation": _distance(counts / number, law),
        "first_draft_accepted": accepted,
    }


def measure_point(
    table: torch.Tensor, drafter: torch.Tensor, gate: float, budget: float, pairs: int
) -> dict[str, Any]:
    """Take one point of the curve: each pair with the whole budget."""
    config = AsdConfig(asd_sampling="gumbel", asd_gate=gate, asd_budget=budget)
    chain = ToyChain(table, drafter, ROWS, config)
    counts, accepted = _count(chain, pairs, f"gate {gate}, budget {budget}", renew=True)
    law, number = joint_law(table), counts.sum()
    first = sampling_law(table)[0]
    raised = boosted(first, int(drafter[0]), min(gate * NUM_DRAFTS, budget))
    return {
        "gate": gate,
        "budget": budget,
        "pairs": int(number),
        "total_variation": _distance(counts / number, law),
        "first_token_total_variation": _distance(counts.sum(1) / number, first),
        "first_token_in_theory": _distance(raised, first),
        "first_draft_accepted": accepted,
    }


def measure_cost(num_rows: int, num_drafts: int = 5, vocab_size: int = 49152) -> dict[str, Any]:
    """Time the verification of sampled requests, vLLM's way and coupled, in turns."""
    logits = torch.randn(num_rows * (num_drafts + 1), vocab_size)
    step = metadata([[1] * num_drafts for _ in range(num_rows)])
    config = AsdConfig(asd_sampling="gumbel", asd_gate=NEVER)
    runners = {}
    for path in ("vLLM", "gumbel"):
        runners[path] = Runner(num_rows)
        limits = {f"r{row}": config.limits for row in range(num_rows)} if path == "gumbel" else {}
        attach(runners[path], config, limits, sampled=True)
        runners[path].sampling = sampling([0.8] * num_rows)
    seconds: dict[str, list[float]] = {path: [] for path in runners}
    for _ in track(range(20), f"cost, {num_rows} rows", console=PROGRESS):
        for path in ("vLLM", "gumbel", "gumbel", "vLLM"):
            start = time.perf_counter()
            runners[path].sample_tokens((logits, step))
            seconds[path].append(time.perf_counter() - start)
    medians = {path: 1000 * statistics.median(times) for path, times in seconds.items()}
    return {"rows": num_rows, "num_drafts": num_drafts, "vocab": vocab_size, "median_ms": medians}


def detectable(number: float, degrees: int) -> float:
    """The effect size w that the chi-square finds with the power POWER at the level ALPHA."""
    critical = stats.chi2.isf(ALPHA, degrees)
    noncentrality = optimize.brentq(
        lambda value: stats.ncx2.sf(critical, degrees, value) - POWER, 1e-3, 10 * critical
    )
    return float(np.sqrt(noncentrality / number))


def draw(result: dict[str, Any], picture: Path) -> None:
    """Draw the curve over the budget: the law's distance, and the first draft's acceptance."""
    points = [point for point in result["curve"] if point["gate"] == UNLIMITED]
    budgets = [point["budget"] for point in points]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    for key, label, style in (
        ("total_variation", "two tokens, measured", "o-"),
        ("first_token_total_variation", "first token, measured", "s"),
        ("first_token_in_theory", "first token, closed form", "--"),
    ):
        left.plot(budgets, [point[key] for point in points], style, label=label)
    left.axhline(
        result["exact"][0]["total_variation"], color="grey", lw=0.8, label="two tokens, no exceptions"
    )
    left.set_ylabel("total variation from the target's law")
    right.plot(budgets, [point["first_draft_accepted"] for point in points], "o-", label="coupled")
    right.axhline(result["exact"][0]["first_draft_accepted"], color="grey", lw=0.8, label="no exceptions")
    right.set_ylabel("first draft accepted")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xlabel("budget for two tokens, nats (gate without effect)")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def _count(chain: ToyChain, pairs: int, label: str, renew: bool = False) -> tuple[np.ndarray, float]:
    """[V, V] counts of the first two tokens, and the share of first drafts that were accepted."""
    counts, accepted = np.zeros((VOCAB, VOCAB)), 0
    steps = -(-pairs // ROWS)
    for _ in track(range(steps), label, console=PROGRESS):
        if renew:
            chain.renew()
        first, second = chain.two_tokens(NUM_DRAFTS).T.numpy()
        np.add.at(counts, (first, second), 1)
        accepted += int((chain.first_block[:, 1] >= 0).sum())
    return counts, accepted / (steps * ROWS)


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).sum() / 2)


if __name__ == "__main__":
    main()
