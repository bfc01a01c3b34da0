"""The plan in sentences: whether speculation pays, and what would have to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vllm_asd.tools.plan.acceptance import Number
from vllm_asd.tools.plan.curve import Curve
from vllm_asd.tools.plan.speed import Costs

if TYPE_CHECKING:
    from vllm_asd.tools.plan.plan import Load, Row


_SAME_TOKENS = 1e-9


def verdict(name: str, rows: Sequence[Row], best: Row, costs: Costs, verification_assumed: bool) -> str:
    """One arm's verdict by draft length.

    Args:
        name: Of the arm.
        rows: By draft length.
        best: The fastest of them.
        costs: Of a round.
        verification_assumed: Nobody gave a verification cost.
    """
    if math.isclose(best.speedup, 1, rel_tol=1e-9):
        return f"{name}: speculation gains nothing: at best, at k={best.k}, it breaks even."
    if best.speedup < 1:
        cheapest = max(rows, key=lambda row: row.break_even_draft_cost)
        limit = cheapest.break_even_draft_cost
        change = (
            f"a draft token would have to cost less than {limit:.3f} of a decode step (k={cheapest.k})"
            if limit > 0
            else "verification would have to be cheaper: no drafter is cheap enough at this cost"
        )
        return (
            f"{name}: speculation LOSES at every k from 1 to {rows[-1].k}; the least bad is k={best.k} at "
            f"{best.speedup:.3f}x. Turn it off; to pay, {change}."
        )
    text = f"{name}: best k={best.k}, {best.expected_tokens:.3f} tokens per round, {best.speedup:.3f}x"
    text += " (extrapolated)" if best.extrapolated else ""
    if verification_assumed:
        text += f" (if verifying {best.k + 1} tokens costs as much as one)"
    text += f"; breaks even at a draft cost of {best.break_even_draft_cost:.3f}"
    text += f" (given: {float(costs.draft):.3f})."
    losing = [row.k for row in rows if row.speedup < 1]
    return text + (f" Speculation LOSES at k={_ranges(losing)}." if losing else "")


def acceptance_warnings(rows_by_arm: Mapping[str, Sequence[Row]]) -> list[str]:
    """Say so where ASD is given less acceptance than strict, which it can't have on the same drafts."""
    if not {"strict", "ASD"} <= rows_by_arm.keys():
        return []
    pairs = zip(rows_by_arm["strict"], rows_by_arm["ASD"], strict=True)
    lower = [row.k for strict, row in pairs if row.expected_tokens < strict.expected_tokens - _SAME_TOKENS]
    if not lower:
        return []
    return [
        f"WARNING: ASD yields fewer tokens than strict at k={_ranges(lower)}. On the same drafts it never "
        "keeps fewer: were both measured on the same prompts, and in the right order?"
    ]


def correction_line(accepted: Number, residual_mass: Number, residual: Sequence[Number] | None) -> str:
    """A, Z and the residual law of exact verification, see `law.correction`."""
    line = f"Exact: accepts with A = {float(accepted):.6g}, Z = {float(residual_mass):.6g}; "
    if residual is None:
        return line + "nothing is ever rejected."
    return line + f"a rejected draft is drawn from {', '.join(f'{float(value):.6g}' for value in residual)}."


def load_verdict(load: Load) -> str:
    """Where the load makes speculation lose."""
    measured = list(load.speedups)
    if load.break_even == 0:
        return f"at k={load.k} speculation LOSES at concurrency {measured[0]:g} already"
    if math.isinf(load.break_even):
        return f"at k={load.k} speculation pays at every concurrency given, up to {measured[-1]:g}"
    return f"at k={load.k} speculation LOSES from concurrency {load.break_even:.3g} on (interpolated)"


def cost_line(costs: Costs, verification_assumed: bool) -> str:
    """The costs that the figures rest on.

    Args:
        costs: Of a round.
        verification_assumed: Nobody gave a verification cost.
    """
    if isinstance(costs.verify, Curve):
        verify = ", ".join(f"{y:.3g} at k={x:g}" for x, y in costs.verify.points)
    else:
        verify = f"{float(costs.verify):.3g}"
    assumed = " (ASSUMED: no more costly than one token; give --verify-cost)" if verification_assumed else ""
    return (
        f"Costs in plain decode steps: draft {float(costs.draft):.3g} a token, "
        f"verification {verify}{assumed}, overhead {float(costs.overhead):.3g} a round."
    )


def _ranges(ks: Sequence[int]) -> str:
    """[1, 2, 3, 7] as "1-3, 7"."""
    runs: list[list[int]] = []
    for k in ks:
        if runs and k == runs[-1][-1] + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
