"""Paired scores between 0 and 1 that are not all 0 or 1: the mean difference against a distance.

A t-test would call a handful of equal pairs proof of equality, because its variance is then zero. Agresti and
Min's adjustment for paired 0/1 scores (Statistics in Medicine 24 (2005), 729-740) adds half an observation to
each cell of the 2x2 table; in terms of differences that is half a pair at +1, half a pair at -1 and one at 0,
and in those terms it carries over to graded scores.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


@dataclass(frozen=True)
class PairedDifferences:
    """What the test needs of the differences, second arm minus first, each within [-1, 1].

    Attributes:
        pairs: n.
        total: Their sum.
        squares: The sum of their squares.
    """

    pairs: int
    total: float
    squares: float

    @classmethod
    def of(cls, first: ArrayLike, second: ArrayLike) -> Self:
        """Differences of two arms' scores [n], each within [0, 1]."""
        differences = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
        return cls(len(differences), float(differences.sum()), float((differences**2).sum()))

    @property
    def difference(self) -> float:
        """Second arm's mean score minus the first's."""
        return self.total / self.pairs

    def swapped(self) -> "PairedDifferences":
        """The same with the arms exchanged."""
        return PairedDifferences(self.pairs, -self.total, self.squares)

    def adjusted(self) -> tuple[float, float]:
        """Mean and standard error with the two pairs added."""
        pairs = self.pairs + 2
        mean = self.total / pairs
        return mean, float(np.sqrt(((self.squares + 1) / pairs - mean**2) / pairs))


def adjusted_p_value(differences: PairedDifferences, null: float) -> float:
    """P-value of "the mean difference is at most `null`" against "it is above"."""
    mean, error = differences.adjusted()
    return float(stats.norm.sf((mean - null) / error))


def adjusted_interval(differences: PairedDifferences, alpha: float) -> tuple[float, float]:
    """The mean differences that the test does not reject, at `alpha` on each side; within [-1, 1]."""
    mean, error = differences.adjusted()
    reach = stats.norm.isf(alpha) * error
    return max(-1.0, float(mean - reach)), min(1.0, float(mean + reach))
