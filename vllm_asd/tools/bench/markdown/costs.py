"""What a round costs: the parts of a decode step, and the planner's prediction from such costs."""

from typing import Any

from vllm_asd.tools.bench.cells import ASD
from vllm_asd.tools.bench.markdown.tables import NAMES, table
from vllm_asd.tools.bench.step_timer import PARTS


def step(report: dict[str, Any]) -> str:
    """Where the time of a decode step goes, arm by arm; empty if that was not timed."""
    if not report["profile"]:
        return ""
    lines = ["## Where the time of a decode step goes, ms\n"]
    if any(profile["by_batch"] for profile in report["profile"].values()):
        lines.append("![Parts of a step](step.png)\n")
    rows = []
    shares = []
    for server, profile in report["profile"].items():
        for size, arms in profile["by_batch"].items():
            for arm, found in arms.items():
                mean = found["mean_ms"]
                shares.append((found["rule_share"], server, size) if arm == ASD else (0.0, server, size))
                parts = [f"{mean[part]:.2f}" for part in PARTS]
                rows.append(
                    [server, size, NAMES[arm], f"{mean['step']:.1f}", *parts, f"{found['rule_share']:.2%}"]
                )
    lines.append(table(["server", "batch", "arm", "step", *PARTS, "the rule's share"], rows))
    low, high = min(s for s in shares if s[0] > 0), max(shares)
    lines.append(
        f"The rule takes {low[0]:.2%} to {high[0]:.2%} of a step (largest: {high[1]}, batch {high[2]}). "
        "Means over the steps in which the whole batch decodes, timed in one process around the runner's own "
        "methods (`python -m vllm_asd.tools.bench.profile`); verification is vLLM's sampler without the "
        "rule.\n"
    )
    return "\n".join(lines)


def prediction(report: dict[str, Any]) -> str:
    """The planner's speed-ups beside those measured; empty if there are none."""
    rows = [
        [
            item["server"],
            NAMES[item["arm"]],
            str(item["concurrency"]),
            f"{item['tokens_per_round']:.2f}",
            f"{item['round_cost']:.2f}",
            f"{item['predicted']:.2f}",
            f"{item['measured']:.2f}",
            f"{item['error']:+.0%}",
        ]
        for item in report["prediction"]
    ]
    if not rows:
        return ""
    head = [
        "server",
        "arm",
        "at a time",
        "tokens per round",
        "cost of a round",
        "predicted",
        "measured",
        "error",
    ]
    worst = max(report["prediction"], key=lambda item: abs(item["error"]))
    lines = [
        "## The planner's prediction\n",
        "Speed-up over no speculation from `vllm-asd plan`'s model: tokens per round over the "
        "cost of a round, in plain decode steps at that concurrency (mean ITL of strict over that of no "
        "speculation).\n",
        table(head, rows),
        f"Largest error: {worst['explanation']}\n",
        "Where each comes from:\n",
        *(f"- {item['explanation']}" for item in report["prediction"]),
    ]
    return "\n".join(lines) + "\n"
