"""What a calibration leaves on record: every figure in JSON, the essence as the frozen file's comment."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from vllm_asd.tools.calibrate.outcome import Caps, Outcome
from vllm_asd.tools.calibrate.rejections import Rejections
from vllm_asd.tools.calibrate.run import Calibration, Plan
from vllm_asd.tools.provenance import provenance

SCHEMA = "vllm-asd/calibration/1"


def evidence(plan: Plan, calibration: Calibration, frozen: dict[str, Any]) -> dict[str, Any]:
    """Everything, for the file beside the frozen one. Holds no prompt and no folder of this machine."""
    return {
        "schema": SCHEMA,
        **provenance(("vllm-asd",)),
        "server": {
            "vllm": plan.served.vllm_version,
            "served_model": plan.served.model,
            "num_draft_tokens": plan.served.num_draft_tokens,
            "ceilings": asdict(plan.served.limits),
        },
        "frozen": frozen,
        "pricing": plan.pricing,
        "data": [{"name": file.name, "sha256": file.sha256} for file in plan.data],
        # The audit refuses these.
        "prompts": sorted({prompt.digest for prompt in plan.prompts}),
        "max_tokens": plan.max_tokens,
        "concurrency": plan.concurrency,
        "caps": asdict(plan.caps),
        "first_rejections": _rejections(calibration.rejections),
        "first_rejections_by_task": {n: _rejections(r) for n, r in calibration.rejections_by_task.items()},
        "control_noise": calibration.control_noise,
        "tried": [_flat(outcome, plan.caps) for outcome in calibration.found.tried],
        "chosen": _flat(calibration.found.best, plan.caps),
        "chosen_by_task": {name: _flat(o, plan.caps) for name, o in calibration.by_task.items()},
        "why": why(plan, calibration),
    }


def header(plan: Plan, calibration: Calibration, name: str) -> list[str]:
    """The frozen file's leading comment."""
    best = calibration.found.best
    date = datetime.now(UTC).date().isoformat()
    sets = ", ".join(file.name for file in plan.data)
    return [
        f"vllm serve --config {name}",
        "",
        f"Source of the limits: `vllm-asd calibrate`, {date}, vLLM {plan.served.vllm_version}.",
        f"{best.prompts} prompts of {sets};",
        f"answers up to {plan.max_tokens} tokens; every figure in the .calibration.json beside this file.",
        f"There: x{_gain(best)} tokens per round over budget 0; {best.regret:.2f} nats and "
        f"{best.exceptions:.2f} exceptions per 100 tokens",
        f"(caps {plan.caps.regret:g} and {plan.caps.exceptions:g}). "
        "The gain is the best of many tried, so a little flattered,",
        "and says nothing of quality: `vllm-asd audit` does, on other prompts.",
    ]


def why(plan: Plan, calibration: Calibration) -> str:
    """Why this setting, in a sentence."""
    found = calibration.found
    full = [o for o in found.tried if o.prompts == found.best.prompts]
    within = sum(not plan.caps.excess(o) for o in full)
    return (
        f"Largest gain of the {within} within the caps among the {len(full)} measured on all "
        f"{found.best.prompts} prompts; {len(found.tried)} were tried, the others on fewer."
    )


def _rejections(rejections: Rejections) -> dict[str, Any]:
    return {**asdict(rejections), "gate": rejections.gate}


def _gain(outcome: Outcome) -> str:
    value, low, high = outcome.gain
    return f"{value:.3f} ({low:.3f}-{high:.3f})"


def _flat(outcome: Outcome, caps: Caps) -> dict[str, Any]:
    return {**asdict(outcome), "within_caps": not caps.excess(outcome)}
