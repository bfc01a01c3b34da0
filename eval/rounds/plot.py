"""One picture of a summary: tokens per round by data set, and where the budget went.

python -m eval.rounds.plot FOLDER/summary.json PICTURE.png
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

STRICT, ASD = "#9aa5b1", "#0b6e99"


def draw(report: dict[str, Any], picture: Path) -> None:
    """Draw the two panels.

    Args:
        report: A `summary.json`.
        picture: Where to write it; the ending chooses the format.
    """
    rows = report["summaries"]
    names = [row["task"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=(3, 2))
    for index, row in enumerate(rows):
        ratio, low, high = row["gain"]
        left.bar(index - 0.2, row["strict"], 0.38, color=STRICT)
        bar = left.bar(index + 0.2, row["asd"], 0.38, color=ASD)
        left.bar_label(bar, [f"x{ratio:.2f}\n({low:.2f}-{high:.2f})"], fontsize=8, padding=2)
    left.set_xticks(range(len(names)), names)
    left.set_ylabel("tokens per verification round")
    left.set_ylim(0, 1.35 * max(row["asd"] for row in rows))
    left.legend(["strict (budget 0)", "ASD"], frameon=False, loc="upper left", fontsize=8)
    speculation = report["speculation"]
    left.set_title(
        f"{report['target']}, {speculation['method']}, K = {speculation['num_speculative_tokens']}",
        fontsize=9,
    )

    for offset, key, color in ((-0.2, "changed", ASD), (0.2, "changed_by_itself", STRICT)):
        places = [index + offset for index in range(len(rows))]
        bar = right.bar(places, [100 * row[key] for row in rows], 0.38, color=color)
        right.bar_label(bar, fmt="%.0f", fontsize=8, padding=2)
    right.set_xticks(range(len(names)), names)
    right.set_ylabel("% of answers that differ from strict")
    right.set_ylim(0, 135)
    right.legend(["ASD", "strict, run again"], frameon=False, loc="upper right", fontsize=8)
    budget, gate, cap = (speculation[f"asd_{key}"] for key in ("budget", "gate", "block_cap"))
    right.set_title(f"B = {budget:g}, g = {gate:g}, M = {cap}", fontsize=9)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
