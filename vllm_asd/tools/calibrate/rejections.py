"""What strict verification rejects first in each block, and how near it came: the authors' starting gate."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from vllm_asd.tools.answers import Answer

ARM = "first-rejections"
# In shadow the text is strict's own, and with a cap of 1 a block's exception is its first strict rejection.
XARGS: dict[str, Any] = {"asd_mode": "shadow", "asd_block_cap": 1}

GATE_QUANTILE = 0.25
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FEWEST = 20


@dataclass(frozen=True)
class Rejections:
    """The first strict rejections of many blocks.

    Attributes:
        count: How many were seen.
        ties: Share whose regret is 0: another token, the same logit.
        regret: Quantile to regret in nats, ties included.
        price: Quantile to regret per draft token at stake, ties left out, as the authors do.
        by_stake: Draft tokens at stake to how many rejections and their median regret.
    """

    count: int
    ties: float
    regret: dict[str, float]
    price: dict[str, float]
    by_stake: dict[int, tuple[int, float]]

    @property
    def gate(self) -> float:
        """The authors' recipe for the gate: the 25th percentile of the price."""
        return self.price[_name(GATE_QUANTILE)]


def first_rejections(answers: Sequence[Answer]) -> Rejections:
    """Read the traces of answers that ran under `XARGS`.

    Raises:
        ValueError: They are too few to read a quantile off.
    """
    seen = np.array([pair for answer in answers for pair in _complete(answer)], dtype=float).reshape(-1, 2)
    regret, at_stake = seen[:, 0], seen[:, 1]
    priced = regret > 0
    if priced.sum() < _FEWEST:
        raise ValueError(
            f"{int(priced.sum())} strict rejections in {len(answers)} answers are too few to calibrate on: "
            "give more prompts or longer answers (--prompts, --max-tokens)"
        )
    return Rejections(
        count=len(regret),
        ties=float(np.mean(~priced)),
        regret=_quantiles(regret),
        price=_quantiles(regret[priced] / at_stake[priced]),
        by_stake={
            int(stake): (int((at_stake == stake).sum()), float(np.median(regret[at_stake == stake])))
            for stake in np.unique(at_stake)
        },
    )


def _complete(answer: Answer) -> list[tuple[float, int]]:
    """Regret and draft tokens at stake, up to where a spent budget begins to hide rejections."""
    end = inf if answer.exhausted_at is None else answer.exhausted_at
    return [(regret, at_stake) for position, regret, at_stake in answer.trace if position < end]


def _quantiles(values: "np.ndarray[Any, np.dtype[np.float64]]") -> dict[str, float]:
    return {_name(level): float(np.quantile(values, level)) for level in _QUANTILES}


def _name(level: float) -> str:
    return f"{level:.0%}"
