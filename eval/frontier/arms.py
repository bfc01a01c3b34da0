"""The arms of the comparison: a rule, its knob, and the limits it runs under."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from eval.frontier.rules import Fly, LookAhead, Ratio, Relaxed, Rule, Typical, Walk

STRICT = "strict"
AGAIN = "again"
PAPER = "paper"

# So that only the rule decides; a cap and budgets of the size below never bind.
_UNLIMITED = 1e6
_NO_CAP = 128


def _limits(budget: float, gate: float, cap: int, refill: float) -> dict[str, Any]:
    return {"asd_budget": budget, "asd_gate": gate, "asd_block_cap": cap, "asd_refill": refill}


SERVER = _limits(_UNLIMITED, _UNLIMITED, _NO_CAP, 1.0)


@dataclass(frozen=True)
class Arm:
    """One point of a frontier.

    Attributes:
        family: The rule's name; arms of a family differ in the knob.
        knob: Its value, rising from strict to lax.
        name: Without blanks.
        rule: What decides.
        limits: The request's `vllm_xargs`, complete, since the server's own are without bounds.
    """

    family: str
    knob: float
    name: str
    rule: Rule
    limits: dict[str, Any] = field(hash=False)


def _ours(
    family: str,
    rule: Rule,
    gate: float,
    budget: float = _UNLIMITED,
    refill: float = 0.0,
    cap: int = 2,
    guard: bool = False,
) -> Arm:
    suffix = "" if budget == _UNLIMITED else f"-b{budget:g}"
    suffix += f"-r{refill:g}" if refill else ""
    limits = _limits(budget, gate, cap, refill)
    if guard:
        suffix += "-guard"
        limits["asd_guard"] = "on"
    return Arm(family + suffix, gate, f"{family}{suffix}-g{gate:g}", rule, limits)


def _rival(family: str, knob: float, name: str, rule: Rule) -> Arm:
    return Arm(family, knob, f"{family}-{name}", rule, _limits(_UNLIMITED, _UNLIMITED, _NO_CAP, 0.0))


def _strict(name: str) -> Arm:
    return Arm(name, 0.0, name, Walk("remaining"), _limits(0, 0, 0, 0))


_CONTROL = _strict(STRICT)
# The control a second time: what other batches alone change, since a bf16 sum depends on its shapes.
_AGAIN = _strict(AGAIN)

_REPLAYED_GATES = (0.1, 0.15, 0.25, 0.4, 0.6, 1.0)


def _paper(gate: float) -> Arm:
    return _ours(PAPER, Walk("remaining"), gate)


def _realized(gate: float) -> Arm:
    return _ours("realized", Walk("realized"), gate)


def _lookahead(gate: float) -> Arm:
    return _ours("lookahead", LookAhead(), gate, cap=_NO_CAP)


def _fly(window: int) -> Arm:
    return _rival("fly", 1 / window, f"w{window}", Fly(window))


def _relaxed(delta: float) -> Arm:
    return _rival("relaxed", delta, f"d{delta:g}", Relaxed(delta))


def _ratio(least: float) -> Arm:
    return _rival("ratio", 1 - least, f"r{least:g}", Ratio(least))


def _typical(alpha: float) -> Arm:
    return _rival("typical", 1 / alpha, f"a{alpha:g}", Typical(alpha**2, alpha))


# What each prompt is answered under. The most that a small machine does in half an hour for 128 prompts.
FRONTIER: tuple[Arm, ...] = (
    _CONTROL,
    _AGAIN,
    *map(_paper, (0.1, 0.25, 0.5)),
    _ours(PAPER, Walk("remaining"), 0.25, budget=8.0),
    *map(_realized, (0.3, 0.6, 1.0)),
    *map(_lookahead, (0.6, 1.0)),
    *map(_fly, (2, 1)),
    *map(_relaxed, (0.15, 0.4)),
    *map(_ratio, (0.45, 0.25)),
    *map(_typical, (1.4, 0.7)),
)

# Where loops have the time to form: a lax setting with and without the guard.
GUARD: tuple[Arm, ...] = (_CONTROL, _AGAIN, _paper(0.5), _ours(PAPER, Walk("remaining"), 0.5, guard=True))

# What the control's blocks are decided again under, which costs next to nothing.
REPLAYED: tuple[Arm, ...] = (
    *map(_paper, (0.05, 0.1, 0.15, 0.25, 0.4, 0.6)),
    *map(_realized, _REPLAYED_GATES),
    *map(_lookahead, _REPLAYED_GATES),
    *map(_fly, (4, 3, 2, 1)),
    *map(_relaxed, (0.05, 0.15, 0.3, 0.5)),
    *map(_ratio, (0.8, 0.6, 0.4, 0.25)),
    *map(_typical, (2.0, 1.4, 0.7, 0.3)),
)

# A budget that a few hundred tokens use up, and about what the same gate spends while it lasts given back;
# then the rules alone, at settings of about the same regret.
LONG: tuple[Arm, ...] = (
    _CONTROL,
    _AGAIN,
    _ours(PAPER, Walk("remaining"), 0.25, budget=8.0),
    _ours(PAPER, Walk("remaining"), 0.25, budget=8.0, refill=0.03),
    _ours("realized", Walk("realized"), 0.6, budget=8.0, refill=0.03),
    _paper(0.25),
    _realized(0.6),
    _lookahead(0.6),
    _fly(2),
    _relaxed(0.15),
    _ratio(0.45),
    _typical(1.4),
)


def select(arms: Sequence[Arm], patterns: str) -> list[Arm]:
    """The arms whose names match one of the comma-separated patterns, and the control.

    Raises:
        ValueError: A pattern matches nothing.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    for pattern in wanted:
        if not any(fnmatch(arm.name, pattern) for arm in arms):
            raise ValueError(
                f"--arms {pattern}: no such arm, send patterns of {', '.join(a.name for a in arms)}"
            )
    return [arm for arm in arms if arm.name == STRICT or any(fnmatch(arm.name, p) for p in wanted)]
