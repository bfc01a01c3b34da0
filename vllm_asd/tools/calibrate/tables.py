"""What a person reads at the end of a calibration."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from vllm_asd.tools.calibrate.outcome import Caps, Outcome
from vllm_asd.tools.calibrate.rejections import Rejections
from vllm_asd.tools.calibrate.run import Calibration

_COLUMNS = (
    "limits", "prompts", "gain (95%)", "nats/100", "exc./100", "parts at", "changed", "used up", "length"
)  # fmt: skip


def show(console: Console, calibration: Calibration, caps: Caps) -> None:
    """Print the rejections, every setting tried, and the chosen one by data set."""
    console.print(_rejections_line(calibration.rejections), soft_wrap=True)
    gates = ", ".join(f"{name} {r.gate:.3g}" for name, r in calibration.rejections_by_task.items())
    console.print(f"It would be by data set: {gates}", soft_wrap=True)
    best = calibration.found.best
    title = f"Against budget 0; caps {caps.regret:g} nats, {caps.exceptions:g} exceptions per 100 tokens"
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in sorted(calibration.found.tried, key=lambda o: (-o.prompts, -o.gain[0])):
        style = "bold green" if outcome is best else "dim" if caps.excess(outcome) else None
        same = "" if outcome.ran == outcome.setting else " ="
        table.add_row(*_row(outcome.setting.arm + same, outcome), style=style)
    for name, outcome in calibration.by_task.items():
        table.add_row(*_row(f"chosen, {name}", outcome))
    console.print(table)
    console.print("Dim: beyond a cap. =: not run, since a stricter budget never ran out.")
    console.print(f"Strict run twice: {calibration.control_noise:.0%} of answers differ.")
    if best.gain[1] <= 1:
        console.print("[bold red]The gain is not shown[/]: its interval holds 1. More --prompts may tell.")


def _rejections_line(rejections: Rejections) -> str:
    regret = " / ".join(f"{rejections.regret[name]:.3g}" for name in ("25%", "50%", "75%"))
    return (
        f"{rejections.count} first strict rejections: regret quartiles {regret} nats, "
        f"{rejections.ties:.1%} ties; the price's lower quartile, the starting gate, is {rejections.gate:.3g}"
    )


def _row(name: str, outcome: Outcome) -> tuple[str, ...]:
    gain, low, high = outcome.gain
    return (
        name,
        str(outcome.prompts),
        f"{gain:.3f} ({low:.3f}-{high:.3f})",
        f"{outcome.regret:.2f}",
        f"{outcome.exceptions:.2f}",
        f"{outcome.parting:.0f}",
        f"{outcome.changed:.0%}",
        f"{outcome.exhausted:.0%}",
        f"{outcome.length:.3f}",
    )
