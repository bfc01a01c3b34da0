"""Synthetic answers of an audit: what a rule costs is set by hand, so that the report's verdict is known."""

import hashlib
from dataclasses import dataclass

import numpy as np

from vllm_asd.tools.audit.items import Arm, Item


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Rule:
    """What an arm does: its chances to lose a solved item, to solve another, to change the text."""

    loses: float = 0.0
    gains: float = 0.0
    changes: float = 0.0
    speed: float = 1.0
    longer: float = 1.0
    regret: float = 0.0
    likelihood: float = 0.0


STRICT = Rule()
GOOD = Rule(loses=0.004, gains=0.004, changes=0.4, speed=1.3, longer=1.03, regret=3.0, likelihood=-0.01)
RIGGED = Rule(loses=0.9, changes=1.0, speed=2.0, longer=0.5, regret=8.0, likelihood=-3.0)


def task_items(
    task: str,
    count: int,
    asd: Rule,
    solved: float = 0.6,
    again: Rule = STRICT,
    seed: int = 0,
    graded: bool = False,
) -> list[Item]:
    """Three arms of a task's items."""
    generator = np.random.default_rng([seed, *task.encode()])
    items = []
    for index in range(count):
        tokens = int(generator.lognormal(4.5, 0.5)) + 2
        score = float(generator.random() < solved)
        if graded:
            score = round(float(generator.random()), 2)
        for arm, rule in (("control", STRICT), ("asd", asd), ("control-again", again)):
            items.append(_item(task, index, arm, rule, score, tokens, generator))  # type: ignore[arg-type]
    return items


def _item(
    task: str, index: int, arm: Arm, rule: Rule, score: float, tokens: int, generator: np.random.Generator
) -> Item:
    if score > 0 and generator.random() < rule.loses:
        score = 0.0
    elif score < 1 and generator.random() < rule.gains:
        score = 1.0
    changed = generator.random() < rule.changes
    text = f"{task} {index}" + (f" {arm}" if changed else "")
    length = max(2, int(tokens * (rule.longer if changed else 1)))
    rounds = max(1, round(length / (2.5 * rule.speed)))
    regrets = tuple(float(r) for r in generator.exponential(0.5, int(generator.poisson(2 * rule.regret))))
    regrets = regrets if changed else ()
    return Item(
        task=task,
        item_id=str(index),
        arm=arm,
        prompt_hash=sha(f"{task} {index}"),
        answer=text,
        answer_hash=sha(text),
        extracted=f"{index}" if score else f"wrong {text}",
        score=score,
        tokens=length,
        finish_reason="length" if length > 200 else "stop",
        latency_s=rounds * 0.04 * float(generator.uniform(0.95, 1.05)),
        rounds=rounds,
        accepted=max(0, length - 1 - rounds),
        strict_accepted=max(0, length - 1 - rounds - len(regrets)),
        exceptions=len(regrets),
        regret_spent=sum(regrets),
        exception_regrets=regrets,
        exhausted_at=length - 1 if sum(regrets) > 7 else None,
        loglikelihood=-0.3 + (rule.likelihood if changed else 0) + float(generator.normal(0, 1e-3)),
    )
