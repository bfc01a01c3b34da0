"""`vllm-asd plan`: does speculation pay here, at which k, and up to which draft cost and load?"""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from vllm_asd.cli import options
from vllm_asd.cli.ending import checking
from vllm_asd.tools.plan import words
from vllm_asd.tools.plan.curve import Curve
from vllm_asd.tools.plan.inputs import read_acceptance, read_costs, read_law, read_loads
from vllm_asd.tools.plan.law import check_laws, correction, greedy_law, total_variation
from vllm_asd.tools.plan.plan import SCHEMA, Arm, ArmPlan, plan_arm
from vllm_asd.tools.plan.speed import MAX_K, Costs
from vllm_asd.tools.plan.tables import law_table, load_table, output_laws, plan_table
from vllm_asd.tools.server.keyed_request import use_api_key
from vllm_asd.tools.usage import BadUsage

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_UNBOUNDED = 1000

_JOINT = (
    "One rate, assumed independent (0.7), or the share of blocks accepted at least that far (0.82,0.66,0.5)."
)


@options.register(app, "plan")
def main(
    acceptance: Annotated[str | None, typer.Option(help=f"Strict. {_JOINT}", metavar="A[,A...]")] = None,
    asd_acceptance: Annotated[str | None, typer.Option(help="ASD, likewise.", metavar="A[,A...]")] = None,
    url: options.OptionalUrl = None,
    api_key: options.ApiKey = None,
    draft_cost: Annotated[
        float | None, typer.Option(help="One draft token, in plain decode steps.", metavar="C")
    ] = None,
    verify_cost: Annotated[
        str | None,
        typer.Option(
            help="Verifying k + 1 tokens, in plain decode steps: 1.1 or, by k, 4=1.1,8=1.3.", metavar="G"
        ),
    ] = None,
    overhead: Annotated[
        float | None,
        typer.Option(help="Per round, in plain decode steps; also a drafter of one pass per block."),
    ] = None,
    baseline_ms: Annotated[
        float | None, typer.Option(help="One plain decode step: adds ms per token.")
    ] = None,
    draft_ms: Annotated[
        float | None, typer.Option(help="In place of --draft-cost; needs --baseline-ms.")
    ] = None,
    verify_ms: Annotated[str | None, typer.Option(help="In place of --verify-cost, likewise.")] = None,
    overhead_ms: Annotated[float | None, typer.Option(help="In place of --overhead, likewise.")] = None,
    verify_by_concurrency: Annotated[
        str | None,
        typer.Option(
            help="Verification in decode steps at that concurrency: 1=1.0,16=1.6,64=3.", metavar="N=G,..."
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(help="The k of --verify-by-concurrency; with --url, the server's.", min=1, max=MAX_K),
    ] = None,
    law: Annotated[
        tuple[str, str] | None, typer.Option(help="Instead: output laws for a target's P and a draft's Q.")
    ] = None,
    gate: Annotated[float, typer.Option(help="With --law: asd_gate.", min=0)] = 0.25,
    budget: Annotated[float, typer.Option(help="With --law: nats left of the budget.", min=0)] = 8.0,
    at_stake: Annotated[int, typer.Option(help="With --law: draft tokens from here to the end.", min=1)] = 7,
    as_json: options.AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture here (.png, .svg).")] = None,
) -> None:
    """Estimate from a cost model whether speculation pays: strict and ASD, for k = 1 to 16.

    With --url the acceptance of both comes from that server's /metrics.

    Example: vllm-asd plan --acceptance 0.7 --asd-acceptance 0.8 --draft-cost 0.05

    With loads: vllm-asd plan --url http://localhost:8000 --draft-cost 0.05
    --verify-by-concurrency 1=1,16=1.6,64=3

    Exactness: vllm-asd plan --law 0.5,0.3,0.2 0.7,0.2,0.1
    """
    use_api_key(api_key)
    if law is not None:
        with checking():
            if not (math.isfinite(gate) and math.isfinite(budget)):
                raise ValueError("--gate and --budget must be finite numbers")
            p, q = read_law("P", law[0]), read_law("Q", law[1])
            check_laws(p, q)
        _laws(p, q, gate, budget, at_stake, as_json)
        return
    with checking():
        costs = read_costs(
            baseline_ms, (draft_cost, verify_cost, overhead), (draft_ms, verify_ms, overhead_ms)
        )
        assumed = verify_cost is None and verify_ms is None
        loads = read_loads(verify_by_concurrency)
        given = _given_arms(acceptance, asd_acceptance, url)
        if loads is not None and k is None and url is None:
            raise ValueError("give --k, the draft length that --verify-by-concurrency was measured at")
        if plot is not None and not plot.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {plot.parent} for {plot.name}")
    arms, notes, served_k = (given, (), None) if url is None else _ask(url)
    # Without a server, all that can be wrong was given here.
    with checking() if url is None else contextlib.nullcontext():
        plans = [plan_arm(arm, costs, baseline_ms, loads, k or served_k or 1, assumed) for arm in arms]
    cost_line = words.cost_line(costs, assumed)
    if plot is not None:
        _plot(plans, cost_line, plot)
    if as_json:
        options.print_json(_report(plans, costs, assumed, notes))
    else:
        _print(plans, cost_line, notes)


def _given_arms(acceptance: str | None, asd_acceptance: str | None, url: str | None) -> tuple[Arm, ...]:
    """The arms that the options describe; none where a server is to be asked."""
    given = (("strict", acceptance), ("ASD", asd_acceptance))
    arms = tuple(Arm(name, read_acceptance(text)) for name, text in given if text is not None)
    if url is not None and arms:
        raise ValueError("give --url or acceptances, not both")
    if url is None and not arms:
        raise ValueError("give --acceptance, --asd-acceptance or --url")
    return arms


def _ask(url: str) -> tuple[tuple[Arm, ...], tuple[str, ...], int]:
    """The arms, what to know about them, and the server's k."""
    try:
        from vllm_asd.tools.plan.counters import fetch_metrics, read_counters
    except ImportError as error:
        raise RuntimeError(
            f"reading /metrics needs {error.name}, which vLLM brings: pip install {error.name}"
        ) from None
    reading = read_counters(fetch_metrics(url))
    notes = (f"The server drafts k={reading.k}; counters since its start.", *reading.notes)
    return reading.arms, notes, reading.k


def _laws(
    p: tuple[Fraction, ...], q: tuple[Fraction, ...], gate: float, budget: float, at_stake: int, as_json: bool
) -> None:
    accepted, residual_mass, residual = correction(p, q)
    laws = output_laws(p, q, gate, at_stake, budget)
    if as_json:
        found = {
            name: {
                "law": [float(value) for value in law],
                "tv_to_p": float(total_variation(law, p)),
                "tv_to_greedy": float(total_variation(law, greedy_law(p))),
            }
            for name, law in laws.items()
        }
        exact = {
            "accepted": float(accepted),
            "residual_mass": float(residual_mass),
            "residual": None if residual is None else [float(value) for value in residual],
        }
        options.print_json({"schema": "vllm-asd/law/1", "laws": found, "correction": exact})
        return
    console = Console(highlight=False)
    console.print(law_table(p, q, laws))
    console.print(
        "Exact and naive verify a sampled draft, and stand for P; strict and ASD stand for greedy P."
    )
    console.print(words.correction_line(accepted, residual_mass, residual), soft_wrap=True)
    console.print(f"ASD: gate {gate:g}, {at_stake} draft tokens at stake, {budget:g} nats left.")


def _report(plans: list[ArmPlan], costs: Costs, assumed: bool, notes: tuple[str, ...]) -> dict[str, Any]:
    verify = dict(costs.verify.points) if isinstance(costs.verify, Curve) else costs.verify
    return {
        "schema": SCHEMA,
        "unit": "plain decode steps",
        "costs": {
            "draft": costs.draft,
            "verify": verify,
            "verify_assumed": assumed,
            "overhead": costs.overhead,
        },
        "notes": [*notes, *words.acceptance_warnings({plan.arm.name: plan.rows for plan in plans})],
        "arms": {plan.arm.name: plan.as_json() for plan in plans},
    }


def _print(plans: list[ArmPlan], cost_line: str, notes: tuple[str, ...]) -> None:
    console = Console(highlight=False)
    together = plan_table(plans)
    natural = console.measure(together, options=console.options.update(max_width=_UNBOUNDED)).maximum
    fits = natural <= console.width
    for table in [together] if fits else [plan_table([plan]) for plan in plans]:
        console.print(table)
    console.print("* best; ~ beyond the measured positions, extrapolated", style="dim")
    if any(plan.load for plan in plans):
        console.print(load_table(plans))
    for line in (cost_line, *(f"{plan.arm.name} acceptance: {plan.arm.source}." for plan in plans), *notes):
        console.print(line, soft_wrap=True, markup=False)
    if any(plan.arm.name == "ASD" for plan in plans):
        console.print(
            "ASD's acceptance is for the k it was measured at: the gate's price depends on k.", soft_wrap=True
        )
    for warning in words.acceptance_warnings({plan.arm.name: plan.rows for plan in plans}):
        console.print(warning, style="bold yellow", soft_wrap=True)
    console.print()
    for plan in plans:
        console.print(plan.verdict, style="bold" if plan.best.speedup > 1 else "bold red", soft_wrap=True)
        if plan.load is not None:
            console.print(f"{plan.arm.name}: {words.load_verdict(plan.load)}.", soft_wrap=True)


def _plot(plans: list[ArmPlan], cost_line: str, picture: Path) -> None:
    from vllm_asd.tools.plan.plot import draw

    try:
        draw(plans, cost_line, picture)
    except ImportError:
        raise RuntimeError("--plot needs matplotlib: pip install matplotlib") from None
    except (OSError, ValueError) as error:
        raise BadUsage(f"can't write {picture}: {error}") from None
