"""From runs to points and curves: what each arm gained and cost, and the rules compared at equal cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval.frontier.arms import AGAIN, PAPER, STRICT, Arm
from eval.frontier.loops import loops, repeated_share
from eval.frontier.replay import COLUMNS
from eval.frontier.runs import Run
from vllm_asd.tools.statistics.resampling import Floats, Interval, ResampledSums, Sums

Prompts = Mapping[tuple[str, str], Mapping[str, Run]]
_Statistic = Callable[[Sums], Floats]


@dataclass(frozen=True)
class Point:
    """One arm over the prompts of a task, or of all.

    Attributes:
        arm: Its name.
        family: Its rule.
        knob: Its setting.
        gain: Tokens per round over the control's, less 1.
        same_blocks: Tokens per round over what strict would have kept of the very same blocks, less 1: the
            same trajectory on both sides, so that it varies less.
        regret: Nats per token.
        exceptions: Kept tokens that are not the target's own, per 100.
        median_divergence: Token at which answers part from the control's, the unchanged ones at their end.
        changed: Share of answers that differ from the control's.
        length: Mean length over the control's.
        looping: Share of answers that end in a loop, less the control's.
        repeated: Share of repeated 4-grams per answer, less the control's, mean.
    """

    arm: str
    family: str
    knob: float
    gain: Interval
    same_blocks: Interval
    regret: Interval
    exceptions: Interval
    median_divergence: float
    changed: float
    length: Interval
    looping: Interval
    repeated: Interval


@dataclass(frozen=True)
class ReplayedPoint:
    """One arm on the control's own blocks: no trajectory but that one, so that the rules alone differ.

    Attributes:
        arm: Its name.
        family: Its rule.
        knob: Its setting.
        replayed: Tokens per round over strict's, less 1.
        regret: Nats per token.
        exceptions: Per 100 tokens.
    """

    arm: str
    family: str
    knob: float
    replayed: Interval
    regret: Interval
    exceptions: Interval


@dataclass(frozen=True)
class AtEqualCost:
    """A rule's gain over that of the paper's rule where both cost the same.

    Attributes:
        family: The rule; its curve is read between its settings, straight in log cost and log gain.
        against: The setting of the paper's rule that it is held against.
        cost: "regret" per token or "exceptions" per token.
        measure: "gain", "same_blocks" or "replayed".
        at: That cost; nats, or exceptions per 100 tokens.
        paper: The gain of the paper's rule there.
        ratio: The rule's over it; None where the cost is not between two settings of the rule, or the paper's
            rule gained nothing for certain.
    """

    family: str
    against: str
    cost: str
    measure: str
    at: float
    paper: float
    ratio: Interval | None


def resample(prompts: Prompts, arms: Sequence[Arm]) -> ResampledSums:
    """Sums per arm and column over prompts, which are drawn whole and within their task."""
    rows = [_columns(found, arms) for found in prompts.values()]
    names = dict.fromkeys(name for row in rows for name in row)
    # An answer that ended with its first token has no blocks to decide again.
    table = {name: [row.get(name, 0.0) for row in rows] for name in names}
    return ResampledSums.of(table, strata=[task for task, _ in prompts])


def _columns(found: Mapping[str, Run], arms: Sequence[Arm]) -> dict[str, float]:
    row: dict[str, float] = {"prompts": 1}
    for arm in arms:
        run = found[arm.name]
        row |= {
            f"{arm.name} rounds": run.rounds,
            f"{arm.name} accepted": run.accepted,
            # The control's own, where there is no other.
            f"{arm.name} strict": run.accepted if run.strict is None else sum(run.strict),
            f"{arm.name} regret": run.regret,
            f"{arm.name} exceptions": len(run.exceptions),
            f"{arm.name} tokens": run.tokens,
            f"{arm.name} looping": loops(run.token_ids),
            f"{arm.name} repeated": repeated_share(run.token_ids),
        }
    for name, sums in found[STRICT].replay.items():
        columns = dict(zip(COLUMNS, sums, strict=True))
        columns["tokens"] = columns["rounds"] + columns["accepted"]
        row |= {f"{_REPLAY}{name} {column}": value for column, value in columns.items()}
    return row


def _gain(arm: str) -> _Statistic:
    def statistic(s: Sums) -> Floats:
        strict = 1 + s[f"{STRICT} accepted"] / s[f"{STRICT} rounds"]
        return (1 + s[f"{arm} accepted"] / s[f"{arm} rounds"]) / strict - 1

    return statistic


def _same_blocks(arm: str) -> _Statistic:
    return lambda s: (
        (s[f"{arm} rounds"] + s[f"{arm} accepted"]) / (s[f"{arm} rounds"] + s[f"{arm} strict"]) - 1
    )


def _per_token(arm: str, column: str, scale: float = 1) -> _Statistic:
    return lambda s: scale * s[f"{arm} {column}"] / s[f"{arm} tokens"]


def _less_control(arm: str, column: str) -> _Statistic:
    return lambda s: (s[f"{arm} {column}"] - s[f"{STRICT} {column}"]) / s["prompts"]


_MEASURES: dict[str, Callable[[str], _Statistic]] = {"gain": _gain, "same_blocks": _same_blocks}
_REPLAY = "replayed "
_COSTS: dict[str, Callable[[str], _Statistic]] = {
    "regret": lambda arm: _per_token(arm, "regret"),
    "exceptions": lambda arm: _per_token(arm, "exceptions", 100),
}


def point(arm: Arm, prompts: Prompts, sums: ResampledSums) -> Point:
    """Work out one arm.

    Raises:
        ValueError: A figure is undefined, as without a single round.
    """

    def interval(statistic: _Statistic) -> Interval:
        found = sums.interval(statistic)
        if found is None:
            raise ValueError(f"{arm.name} ran no verification round on these prompts")
        return found

    name = arm.name
    partings = [_parting(found[STRICT], found[name]) for found in prompts.values()]
    return Point(
        arm=name,
        family=arm.family,
        knob=arm.knob,
        gain=interval(_gain(name)),
        same_blocks=interval(_same_blocks(name)),
        regret=interval(_COSTS["regret"](name)),
        exceptions=interval(_COSTS["exceptions"](name)),
        median_divergence=float(np.median([at for at, _ in partings])),
        changed=float(np.mean([changed for _, changed in partings])),
        length=interval(lambda s: s[f"{name} tokens"] / s[f"{STRICT} tokens"]),
        looping=interval(_less_control(name, "looping")),
        repeated=interval(_less_control(name, "repeated")),
    )


def replayed_points(arms: Sequence[Arm], sums: ResampledSums) -> list[ReplayedPoint]:
    """Work out the arms that the control's blocks were decided again under, as far as they were."""
    known = [arm for arm in arms if f"{_REPLAY}{arm.name} rounds" in sums.observed]
    found = []
    for arm in known:
        name = _REPLAY + arm.name
        intervals = [
            sums.interval(s) for s in (_same_blocks(name), *(cost(name) for cost in _COSTS.values()))
        ]
        if None not in intervals:
            found.append(ReplayedPoint(arm.name, arm.family, arm.knob, *(i for i in intervals if i)))
    return found


def _parting(control: Run, run: Run) -> tuple[int, bool]:
    """Where two answers part, and whether they do; equal ones part at their end."""
    pairs = zip(control.token_ids, run.token_ids, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(control.tokens, run.tokens))
    return same, control.token_ids != run.token_ids


def replayed_at_equal_cost(arms: Sequence[Arm], sums: ResampledSums) -> list[AtEqualCost]:
    """The same for the control's blocks decided again: one measure, "replayed"."""
    known = [arm for arm in arms if f"{_REPLAY}{arm.name} rounds" in sums.observed]
    return at_equal_cost(known, sums, {"replayed": _same_blocks}, _REPLAY)


def at_equal_cost(
    arms: Sequence[Arm],
    sums: ResampledSums,
    measures: Mapping[str, Callable[[str], _Statistic]] = _MEASURES,
    prefix: str = "",
) -> list[AtEqualCost]:
    """Hold every rule against each setting of the paper's, for both costs and all measures.

    Args:
        arms: The paper's among them.
        sums: Of their columns.
        measures: By name, what turns an arm's name into a gain.
        prefix: Of the columns.
    """
    families: dict[str, list[str]] = {}
    for arm in arms:
        families.setdefault(arm.family, []).append(prefix + arm.name)
    paper = families.get(PAPER, [])
    others = [family for family in families if family not in (STRICT, AGAIN, PAPER)]
    found = []
    for cost, measure, against, family in (
        (c, m, a, f) for c in _COSTS for m in measures for a in paper for f in others
    ):
        at, reached = _COSTS[cost](against), measures[measure](against)
        paper_gain = sums.interval(reached)
        certain = paper_gain is not None and paper_gain.low is not None and paper_gain.low > 0
        curve = _ratio(families[family], at, reached, _COSTS[cost], measures[measure])
        ratio = sums.interval(curve) if certain else None
        here = (float(at(sums.observed)[0]), float(reached(sums.observed)[0]))
        found.append(AtEqualCost(family, against.removeprefix(prefix), cost, measure, *here, ratio))
    return found


def _ratio(
    names: Sequence[str],
    at: _Statistic,
    reached: _Statistic,
    cost: Callable[[str], _Statistic],
    measure: Callable[[str], _Statistic],
) -> _Statistic:
    """A family's curve, read at a cost, over what was reached there."""

    def statistic(s: Sums) -> Floats:
        x = np.stack([cost(name)(s) for name in names])
        y = np.stack([measure(name)(s) for name in names])
        order = x.argsort(axis=0)
        x, y = np.take_along_axis(x, order, 0), np.take_along_axis(y, order, 0)
        return _read(x, y, at(s)) / reached(s)

    return statistic


def _read(x: Floats, y: Floats, wanted: Floats) -> Floats:
    """Read S curves of A points each, [A, S] and sorted, at one place each; NaN outside of its points.

    Straight in the logarithms: gain goes about as a power of the cost, and a straight line between two
    settings lies 5% to 25% below such a curve, far more below the first of them.
    """
    if len(x) < 2:
        return np.full_like(wanted, np.nan)
    left = np.clip((x <= wanted).sum(axis=0) - 1, 0, len(x) - 2)[None]
    x0, x1, y0, y1 = (
        np.log(np.take_along_axis(table, index, 0)[0]) for table in (x, y) for index in (left, left + 1)
    )
    width = np.where(x1 > x0, x1 - x0, 1)
    within = (wanted >= x[0]) & (wanted <= x[-1])
    return np.where(within, np.exp(y0 + (y1 - y0) * (np.log(wanted) - x0) / width), np.nan)
