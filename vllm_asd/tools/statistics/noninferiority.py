"""Did the second arm lose more than a margin? A verdict in one of three words, and the items it would need.

"non-inferior": a loss as large as the margin is rejected. "inferior": a loss no larger than the margin is
rejected. "undecided": neither. Each of the first two is wrong at most a share `alpha` of the time.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from vllm_asd.tools.statistics.paired_binary import (
    PairedCounts,
    exact_interval,
    exact_p_value,
    mcnemar_p_value,
    null_variance,
)
from vllm_asd.tools.statistics.paired_graded import PairedDifferences, adjusted_interval, adjusted_p_value

Verdict = Literal["non-inferior", "inferior", "undecided"]

ALPHA = 0.05
POWER = 0.8


@dataclass(frozen=True)
class NonInferiority:
    """The test of one paired difference in score.

    Attributes:
        verdict: The word.
        difference: Second arm's mean score minus the first's.
        low: Lower end of the interval that the verdict rests on, `alpha` below it.
        high: Upper end, `alpha` above it.
        gains: Pairs where the second arm scores higher.
        losses: Pairs where it scores lower.
        mcnemar_p: Exact two-sided McNemar p-value of "no difference"; None for graded scores.
        p_noninferior: p-value of "the loss is the margin or more".
        p_inferior: p-value of "the loss is the margin or less".
        needed_items: Items with which "non-inferior" would come out with a probability of `POWER`, if the
            second arm were as good as the first and pairs as discordant as here.
    """

    verdict: Verdict
    difference: float
    low: float
    high: float
    gains: int
    losses: int
    mcnemar_p: float | None
    p_noninferior: float
    p_inferior: float
    needed_items: int


def noninferiority_test(
    first: ArrayLike, second: ArrayLike, margin: float, alpha: float = ALPHA
) -> NonInferiority:
    """Test whether the second arm's score is at most `margin` below the first's.

    Args:
        first: Scores [n] of the control, each within [0, 1].
        second: Scores [n] of the other arm on the same items.
        margin: The tolerated loss, within (0, 1); 0.01 is one point.
        alpha: Error of each of the two one-sided tests.

    Raises:
        ValueError: The margin is out of range, or there are no pairs.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin must lie between 0 and 1, e.g. 0.01 for one point; got {margin}")
    before, after = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(before) == 0 or len(before) != len(after):
        raise ValueError(
            f"need as many scores in both arms, at least one; got {len(before)} and {len(after)}"
        )
    counts, differences = PairedCounts.of(before, after), PairedDifferences.of(before, after)
    binary = bool(np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all())
    if binary:
        p_noninferior, p_inferior = exact_p_value(counts, -margin), exact_p_value(counts.swapped(), margin)
        low, high = exact_interval(counts, alpha)
    else:
        p_noninferior = adjusted_p_value(differences, -margin)
        p_inferior = adjusted_p_value(differences.swapped(), margin)
        low, high = adjusted_interval(differences, alpha)
    return NonInferiority(
        verdict=_verdict(p_noninferior, p_inferior, alpha),
        difference=differences.difference,
        low=low,
        high=high,
        gains=counts.gains,
        losses=counts.losses,
        mcnemar_p=mcnemar_p_value(counts) if binary else None,
        p_noninferior=p_noninferior,
        p_inferior=p_inferior,
        needed_items=needed_items(differences.squares / len(before), margin, alpha),
    )


def _verdict(p_noninferior: float, p_inferior: float, alpha: float) -> Verdict:
    if p_noninferior <= alpha:
        return "non-inferior"
    return "inferior" if p_inferior <= alpha else "undecided"


def needed_items(mean_square: float, margin: float, alpha: float = ALPHA, power: float = POWER) -> int:
    """Items for which the verdict "non-inferior" comes out with a probability of `power`, if nothing is lost.

    Args:
        mean_square: Mean squared difference of a pair; for 0/1 scores the share of discordant pairs.
        margin: The tolerated loss.
        alpha: Error of the test.
        power: Probability of the verdict.

    Never fewer than the items with which even no discordant pair at all would prove the point:
    (1 - margin)^n <= alpha, the "rule of three".

    Source: J.-m. Nam, Biometrics 53 (1997), 1422-1430, at a true difference of 0.
    """
    rate = np.asarray(mean_square / 2)
    under_null = math.sqrt(float(null_variance(rate, rate, -margin)))
    reach = stats.norm.isf(alpha) * under_null + stats.norm.ppf(power) * math.sqrt(mean_square)
    approximate = float(reach / margin) ** 2
    return math.ceil(max(approximate, math.log(alpha) / math.log(1 - margin)))
