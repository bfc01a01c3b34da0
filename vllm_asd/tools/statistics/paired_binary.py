"""Paired 0/1 scores: how sure is it that the second arm's score is above, or below, a given distance?

Of n pairs, `gains` are solved by the second arm only and `losses` by the first only. The difference of the
two scores is (gains - losses) / n. statsmodels has McNemar's test, which asks whether the difference is zero;
it has no test of a paired difference against a margin. The usual asymptotic one (Tango 1998) errs up to 7% of
the time at a nominal 5% when few pairs are discordant, which is just what a good lossy rule produces.

So the test here is exact: pairs are ordered by Tango's score statistic, and the p-value is the probability of
a result at least as extreme, maximised over what the null hypothesis leaves open, the share of discordant
pairs (Hsueh, Liu and Chen 2001). The maximum is taken over a confidence set of that share, whose error is
added to the p-value (Berger and Boos 1994).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

Floats = NDArray[np.float64]

# Error of the confidence set for the discordant share; part of every p-value.
_CONFIDENCE_SET_ERROR = 1e-4
_GRID = 65
_TIE = 1e-9


@dataclass(frozen=True)
class PairedCounts:
    """Counts of a paired 2x2 table.

    Attributes:
        pairs: All pairs, n.
        gains: Pairs that only the second arm solves.
        losses: Pairs that only the first arm solves.
    """

    pairs: int
    gains: int
    losses: int

    @classmethod
    def of(cls, first: ArrayLike, second: ArrayLike) -> Self:
        """Counts of two arms' scores [n], each 0 or 1."""
        before, after = np.asarray(first), np.asarray(second)
        return cls(len(before), int((after > before).sum()), int((after < before).sum()))

    @property
    def difference(self) -> float:
        """Second arm's score minus the first's."""
        return (self.gains - self.losses) / self.pairs

    @property
    def discordance(self) -> float:
        """Share of pairs that only one arm solves."""
        return (self.gains + self.losses) / self.pairs

    def swapped(self) -> "PairedCounts":
        """The same table with the arms exchanged."""
        return PairedCounts(self.pairs, self.losses, self.gains)


def mcnemar_p_value(counts: PairedCounts) -> float:
    """Two-sided exact McNemar test of "no difference" (statsmodels)."""
    return float(mcnemar([[0, counts.gains], [counts.losses, 0]], exact=True).pvalue)


def score_statistic(gains: ArrayLike, losses: ArrayLike, pairs: int, null: float) -> Floats:
    """Tango's statistic of the difference against `null`: standard normal under it, large when above.

    Args:
        gains: Pairs solved by the second arm only, any shape.
        losses: Pairs solved by the first arm only, same shape.
        pairs: n.
        null: The difference under the null hypothesis, within (-1, 1).

    Source: T. Tango, Statistics in Medicine 17 (1998), 891-908.
    """
    gained, lost = np.asarray(gains, dtype=float), np.asarray(losses, dtype=float)
    distance = gained - lost - pairs * null
    deviation = np.sqrt(pairs * null_variance(gained / pairs, lost / pairs, null))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.abs(distance) < _TIE, 0.0, distance / deviation)


def null_variance(gain_rate: Floats, loss_rate: Floats, null: float) -> Floats:
    """Variance of one pair's difference, the rates fitted so that their difference is `null` (Tango)."""
    linear = -gain_rate - loss_rate + (2 - gain_rate + loss_rate) * null
    constant = -loss_rate * null * (1 - null)
    fitted = (np.sqrt(np.maximum(linear**2 - 8 * constant, 0)) - linear) / 4
    variance: Floats = np.maximum(2 * fitted + null * (1 - null), 0)
    return variance


@lru_cache(maxsize=4096)
def exact_p_value(counts: PairedCounts, null: float) -> float:
    """Exact p-value of "the difference is at most `null`" against "it is above".

    Args:
        counts: The table.
        null: Within (-1, 1).
    """
    most_losses = _rejection_boundary(counts, null)
    low, high = _open_rates(counts, null)

    def probability(rates: Floats) -> Floats:
        return _probability(most_losses, max(null, 0) + rates, max(-null, 0) + rates)

    # Squares put more of the grid where pairs are rarely discordant: there the probability moves fastest.
    grid = low + (high - low) * np.linspace(0, 1, _GRID) ** 2
    values = probability(grid)
    best = int(np.argmax(values))
    finer = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)], _GRID)
    return float(min(1.0, max(values[best], probability(finer).max()) + _CONFIDENCE_SET_ERROR))


def exact_interval(counts: PairedCounts, alpha: float) -> tuple[float, float]:
    """The differences that the exact test does not reject, at `alpha` on each side."""
    return _exact_lower_bound(counts, alpha), -_exact_lower_bound(counts.swapped(), alpha)


def _exact_lower_bound(counts: PairedCounts, alpha: float) -> float:
    edge = -1 + 1e-6

    def excess(null: float) -> float:
        return exact_p_value(counts, float(null)) - alpha

    if excess(edge) > 0:
        return -1.0
    # At the observed difference itself the statistic is 0 and the test can't reject.
    return float(optimize.brentq(excess, edge, min(counts.difference, 1 - 1e-6), xtol=1e-5))


def _rejection_boundary(counts: PairedCounts, null: float) -> NDArray[np.int64]:
    """For each number of gains 0..n, the most losses with a statistic at least the observed one; -1 for none.

    The statistic falls as losses rise, so a bisection finds it.
    """
    observed = score_statistic(counts.gains, counts.losses, counts.pairs, null) - _TIE
    gains = np.arange(counts.pairs + 1)
    inside, outside = np.full(counts.pairs + 1, -1), counts.pairs - gains + 1
    while (outside - inside > 1).any():
        middle = (inside + outside) // 2
        extreme = score_statistic(gains, np.maximum(middle, 0), counts.pairs, null) >= observed
        open_ = outside - inside > 1
        inside = np.where(open_ & extreme, middle, inside)
        outside = np.where(open_ & ~extreme, middle, outside)
    return inside


def _open_rates(counts: PairedCounts, null: float) -> tuple[float, float]:
    """Range of the rarer kind of discordance that the observed discordant share leaves open."""
    low, high = proportion_confint(
        counts.gains + counts.losses, counts.pairs, alpha=_CONFIDENCE_SET_ERROR, method="beta"
    )
    top = (1 - abs(null)) / 2
    return float(np.clip((low - abs(null)) / 2, 0, top)), float(np.clip((high - abs(null)) / 2, 0, top))


def _probability(most_losses: NDArray[np.int64], gain_rates: Floats, loss_rates: Floats) -> Floats:
    """Probability that losses stay at or under the boundary, for each pair of rates [rates].

    Only the numbers of gains within nine standard deviations of the expected one are summed over.
    """
    pairs = len(most_losses) - 1
    width = min(int(18 * np.sqrt(pairs * gain_rates.max()) + 60), pairs) + 1
    first = np.clip((pairs * gain_rates - width / 2).astype(int), 0, pairs + 1 - width)
    gains = first[:, None] + np.arange(width)
    gain_rate, loss_rate = gain_rates[:, None], loss_rates[:, None]
    boundary = most_losses[gains]
    share = np.minimum(loss_rate / np.maximum(1 - gain_rate, _TIE), 1)
    # `bdtr` is the binomial distribution function without the checks of `scipy.stats.binom.cdf`.
    below = np.where(boundary < 0, 0.0, special.bdtr(np.maximum(boundary, 0), pairs - gains, share))
    probability: Floats = (stats.binom.pmf(gains, pairs, gain_rate) * below).sum(axis=1)
    return probability
