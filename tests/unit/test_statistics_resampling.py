"""The paired, stratified bootstrap against scipy's and against cases whose answer is known."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from vllm_asd.tools.statistics.resampling import ResampledSums


def test_agrees_with_scipys_paired_bootstrap() -> None:
    generator = np.random.default_rng(1)
    below = generator.gamma(4.0, size=300)
    above = below * generator.uniform(0.9, 1.5, size=300)
    ours = ResampledSums.of({"a": above, "b": below}, resamples=8000).interval(lambda s: s["a"] / s["b"])

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> Any:
        return np.sum(a, axis=axis) / np.sum(b, axis=axis)

    theirs = stats.bootstrap(
        (above, below),
        ratio,
        paired=True,
        method="percentile",
        n_resamples=8000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert ours is not None
    assert ours.value == pytest.approx(above.sum() / below.sum())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=2e-3)


def test_pairs_stay_together() -> None:
    """A constant ratio of paired values has no spread, however much the values have."""
    values = np.random.default_rng(0).exponential(size=50)
    interval = ResampledSums.of({"a": 2 * values, "b": values}).interval(lambda s: s["a"] / s["b"])
    assert interval is not None
    assert (interval.value, interval.low, interval.high) == pytest.approx((2, 2, 2))


def test_strata_keep_their_sizes() -> None:
    """Differences between tasks are no uncertainty: constant within each, the mean has no spread."""
    columns = {"score": [1.0] * 30 + [0.0] * 70, "pairs": [1.0] * 100}
    stratified = ResampledSums.of(columns, ["a"] * 30 + ["b"] * 70).interval(
        lambda s: s["score"] / s["pairs"]
    )
    plain = ResampledSums.of(columns).interval(lambda s: s["score"] / s["pairs"])
    assert stratified is not None
    assert plain is not None
    assert (stratified.low, stratified.high) == pytest.approx((0.3, 0.3))
    assert plain.high is not None
    assert plain.high > 0.35


def test_an_undefined_figure_is_none_and_an_unbounded_end_is_open() -> None:
    nothing = ResampledSums.of({"a": [1.0, 2.0], "b": [0.0, 0.0]})
    assert nothing.interval(lambda s: s["a"] / s["b"]) is None
    rare = ResampledSums.of({"a": [1.0] * 20, "b": [1.0] + [0.0] * 19})
    interval = rare.interval(lambda s: s["a"] / s["b"])
    assert interval is not None
    assert interval.value == pytest.approx(20)
    assert interval.low is not None
    assert interval.high is None


def test_same_table_same_interval() -> None:
    values = np.random.default_rng(0).random(40)
    first, second = (ResampledSums.of({"a": values, "n": np.ones(40)}) for _ in range(2))
    assert first.interval(lambda s: s["a"] / s["n"]) == second.interval(lambda s: s["a"] / s["n"])
