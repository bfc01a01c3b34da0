"""Paired bootstrap of sums: pairs are resampled whole, each within its stratum (task).

Every figure of an audit is a function of column sums (a mean, a ratio of sums, a rate), so one set of
resampled sums serves them all. `scipy.stats.bootstrap` has no strata.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Sums = Mapping[str, Floats]

CONFIDENCE = 0.95
_RESAMPLES = 2000
_CHUNK = 250


@dataclass(frozen=True)
class Interval:
    """A figure and its percentile bootstrap interval at `CONFIDENCE`; an end that is not finite is None."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ResampledSums:
    """Column sums of a table of pairs, as observed and resampled.

    Attributes:
        observed: Sum per column, shape [1].
        resampled: Sum per column and resample, shape [resamples].
    """

    observed: Sums
    resampled: Sums

    @classmethod
    def of(
        cls,
        columns: Mapping[str, ArrayLike],
        strata: Sequence[str] | None = None,
        resamples: int = _RESAMPLES,
        seed: int = 0,
    ) -> Self:
        """Resample the rows of a table.

        Args:
            columns: Each [n]; row i of all columns is one pair.
            strata: Stratum of each row [n]; None puts all in one.
            resamples: How often.
            seed: Of the generator: the same table gives the same intervals.
        """
        table = np.column_stack([np.asarray(column, dtype=float) for column in columns.values()])
        stratum = np.zeros(len(table)) if strata is None else np.asarray(strata)
        generator = np.random.default_rng(seed)
        drawn = np.zeros((resamples, table.shape[1]))
        for name in np.unique(stratum):
            drawn += _draw(table[stratum == name], resamples, generator)
        total = table.sum(axis=0)
        return cls(
            observed={name: total[[index]] for index, name in enumerate(columns)},
            resampled={name: drawn[:, index] for index, name in enumerate(columns)},
        )

    def interval(self, statistic: Callable[[Sums], Floats]) -> Interval | None:
        """The statistic of the sums with its interval; None where it is undefined on what was observed."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(statistic(self.observed)[0])
            drawn = statistic(self.resampled)
        if not np.isfinite(value):
            return None
        # A resample without a denominator is as far out as can be, on either side.
        tail = (1 - CONFIDENCE) / 2
        low, high = (
            # Not interpolated: an infinite neighbour would give NaN.
            float(np.quantile(np.where(np.isnan(drawn), end, drawn), level, method="inverted_cdf"))
            for end, level in ((-np.inf, tail), (np.inf, 1 - tail))
        )
        return Interval(value, low if np.isfinite(low) else None, high if np.isfinite(high) else None)


def _draw(rows: Floats, resamples: int, generator: np.random.Generator) -> Floats:
    """Column sums [resamples, columns] of resampled rows, in pieces that bound the memory."""
    sums = []
    for start in range(0, resamples, _CHUNK):
        size = (min(_CHUNK, resamples - start), len(rows))
        picks = generator.integers(0, len(rows), size=size)
        flat = picks + len(rows) * np.arange(size[0])[:, None]
        weights = np.bincount(flat.ravel(), minlength=size[0] * len(rows)).reshape(size)
        sums.append(weights @ rows)
    return np.concatenate(sums)
