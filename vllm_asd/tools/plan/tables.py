"""The plan and the laws as rich tables."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from vllm_asd.tools.plan import law
from vllm_asd.tools.plan.acceptance import Number
from vllm_asd.tools.plan.plan import ArmPlan


def plan_table(plans: Sequence[ArmPlan]) -> Table:
    """One row per draft length, a group of columns per arm; the best row of each arm is marked."""
    with_ms = any(plan.rows[0].ms_per_token is not None for plan in plans)
    table = Table(title="Tokens per round (E), speed-up against plain decoding (S)", box=box.SIMPLE_HEAD)
    table.add_column("k", justify="right")
    for plan in plans:
        name = plan.arm.name
        table.add_column(f"{name} E", justify="right")
        table.add_column("S", justify="right")
        if plan.arm.measured_k is not None:
            table.add_column("E indep.", justify="right", style="dim")
            table.add_column("S indep.", justify="right", style="dim")
        if with_ms:
            table.add_column("ms/token", justify="right")
        table.add_column("pays if c <", justify="right")
    for index, first in enumerate(plans[0].rows):
        cells = [str(first.k)]
        for plan in plans:
            cells += _cells(plan, index, with_ms)
        table.add_row(*cells)
    return table


def _cells(plan: ArmPlan, index: int, with_ms: bool) -> list[str]:
    row = plan.rows[index]
    speed = f"{row.speedup:.3f}"
    if row is plan.best:
        speed = f"[bold green]*{speed}[/]" if row.speedup > 1 else f"[bold]*{speed}[/]"
    elif row.speedup < 1:
        speed = f"[red]{speed}[/]"
    cells = [f"{row.expected_tokens:.3f}{'~' if row.extrapolated else ' '}", speed]
    if plan.arm.measured_k is not None:
        cells += [f"{row.independent_expected_tokens:.3f}", f"{row.independent_speedup:.3f}"]
    if with_ms:
        cells.append(f"{row.ms_per_token:.2f}")
    cost = row.break_even_draft_cost
    return [*cells, f"{cost:.3f}" if cost > 0 else "never"]


def load_table(plans: Sequence[ArmPlan]) -> Table:
    """Speed-up by concurrency, a column per arm."""
    loads = [(plan.arm.name, plan.load) for plan in plans if plan.load is not None]
    table = Table(title="Speed-up by concurrency", box=box.SIMPLE_HEAD)
    table.add_column("concurrency", justify="right")
    for name, load in loads:
        table.add_column(f"{name}, k={load.k}", justify="right")
    for users in loads[0][1].speedups:
        values = [load.speedups[users] for _, load in loads]
        table.add_row(f"{users:g}", *(f"[red]{v:.3f}[/]" if v < 1 else f"{v:.3f}" for v in values))
    return table


def output_laws(
    p: Sequence[Number], q: Sequence[Number], gate: float, at_stake: int, remaining: float
) -> dict[str, law.Law]:
    """Every rule's output law, by name."""
    return {
        "exact": law.exact_law(p, q),
        "naive": law.naive_law(p, q),
        "strict": law.greedy_law(p),
        "ASD": law.asd_law(p, q, gate, at_stake, remaining),
    }


def law_table(p: Sequence[Number], q: Sequence[Number], laws: dict[str, law.Law]) -> Table:
    """The laws by token, and how far each is from what it stands for."""
    table = Table(title="What one position emits", box=box.SIMPLE)
    for name in ("token", "P target", "Q draft", *laws):
        table.add_column(name, justify="right")
    for token in range(len(p)):
        table.add_row(str(token), *(f"{float(v[token]):.6g}" for v in (p, q, *laws.values())))
    table.add_section()
    for title, reference in (("TV to P", tuple(p)), ("TV to greedy", law.greedy_law(p))):
        distances = [law.total_variation(v, reference) for v in (p, q, *laws.values())]
        table.add_row(title, *(f"{float(distance):.6g}" for distance in distances))
    return table
