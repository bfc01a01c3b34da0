"""The verdict on paired scores: published values, brute force, its errors by enumeration and simulation."""

import os

import numpy as np
import pytest
from scipy import optimize, stats

pytest.importorskip("statsmodels")

from statsmodels.stats.contingency_tables import mcnemar

from vllm_asd.tools.statistics.noninferiority import ALPHA, needed_items, noninferiority_test
from vllm_asd.tools.statistics.paired_binary import (
    PairedCounts,
    exact_interval,
    exact_p_value,
    score_statistic,
)
from vllm_asd.tools.statistics.paired_graded import PairedDifferences, adjusted_interval, adjusted_p_value

FULL = os.environ.get("VLLM_ASD_FULL") == "1"


def scores(pairs: int, gains: int, losses: int) -> tuple[list[int], list[int]]:
    """Two arms' scores with so many changes; half of the rest is solved by both."""
    same = [1, 0] * pairs
    rest = same[: pairs - gains - losses]
    return [0] * gains + [1] * losses + rest, [1] * gains + [0] * losses + rest


def verdict(pairs: int, gains: int, losses: int, margin: float) -> str:
    return noninferiority_test(*scores(pairs, gains, losses), margin).verdict


def share_of(word: str, pairs: int, gain_rate: float, loss_rate: float, margin: float, draws: int) -> float:
    """Share of simulated audits that get this verdict; equal tables are judged once."""
    generator = np.random.default_rng(7)
    rates = [gain_rate, loss_rate, 1 - gain_rate - loss_rate]
    tables, counts = np.unique(
        generator.multinomial(pairs, rates, size=draws)[:, :2], axis=0, return_counts=True
    )
    hits = 0
    for (gains, losses), count in zip(tables, counts, strict=True):
        table = PairedCounts(pairs, int(gains), int(losses))
        p_value = (
            exact_p_value(table, -margin)
            if word == "non-inferior"
            else exact_p_value(table.swapped(), margin)
        )
        hits += count * (p_value <= ALPHA)
    return float(hits / draws)


class TestScoreStatistic:
    def test_interval_that_tango_published(self) -> None:
        """Tango 1998, 32 pairs, 9 and 3 discordant: 95% interval -0.027 to 0.390."""

        def excess(null: float, side: int) -> float:
            return float(score_statistic(9, 3, 32, null)) - side * float(stats.norm.isf(0.025))

        assert optimize.brentq(excess, -0.5, 0.1875, args=(1,)) == pytest.approx(-0.027, abs=5e-4)
        assert optimize.brentq(excess, 0.1875, 0.9, args=(-1,)) == pytest.approx(0.390, abs=5e-4)

    def test_is_mcnemars_where_the_null_is_no_difference(self) -> None:
        ours = float(score_statistic(23, 11, 200, 0.0))
        theirs = mcnemar([[0, 23], [11, 0]], exact=False, correction=False).statistic
        assert ours**2 == pytest.approx(theirs)

    def test_falls_as_losses_rise(self) -> None:
        """What the search for the rejection boundary relies on."""
        for null in (-0.05, 0.0, 0.03):
            for gains in (0, 3, 20):
                values = score_statistic(np.full(41, gains), np.arange(41), 61, null)
                assert (np.diff(values) < 0).all()


class TestExactTest:
    @pytest.mark.parametrize(("gains", "losses"), [(0, 0), (1, 0), (0, 2), (3, 1)])
    @pytest.mark.parametrize("null", [-0.2, 0.1])
    def test_is_the_largest_probability_of_a_result_as_extreme(
        self, gains: int, losses: int, null: float
    ) -> None:
        """Against every table of 14 pairs, weighed at the discordant shares that the table leaves open."""
        pairs = 14
        tables = np.array([(g, ls, pairs - g - ls) for g in range(pairs + 1) for ls in range(pairs + 1 - g)])
        observed = score_statistic(gains, losses, pairs, null)
        extreme = tables[score_statistic(tables[:, 0], tables[:, 1], pairs, null) >= observed - 1e-9]
        share = stats.binomtest(gains + losses, pairs).proportion_ci(1 - 1e-4)
        shares = np.linspace(share.low, share.high, 400)
        worst = 0.0
        for rate in np.clip((shares - abs(null)) / 2, 0, (1 - abs(null)) / 2):
            gain, loss = max(null, 0) + rate, max(-null, 0) + rate
            law = stats.multinomial(pairs, [gain, loss, max(1 - gain - loss, 0)])
            worst = max(worst, float(law.pmf(extreme).sum()))
        assert exact_p_value(PairedCounts(pairs, gains, losses), null) == pytest.approx(worst, abs=5e-4)

    def test_rule_of_three(self) -> None:
        """With nothing discordant, p is (1 - margin)^n: 299 items are the fewest that rule out one point."""
        assert verdict(298, 0, 0, 0.01) == "undecided"
        assert verdict(300, 0, 0, 0.01) == "non-inferior"
        assert exact_p_value(PairedCounts(300, 0, 0), -0.01) == pytest.approx(0.99**300, abs=2e-4)

    @pytest.mark.parametrize("margin", [0.05, 0.1] if FULL else [0.1])
    def test_errs_at_most_alpha_of_the_time_whatever_the_discordance(self, margin: float) -> None:
        """Not simulated: the probability of every table of so many pairs, at a loss of exactly the margin."""
        pairs = 32 if margin == 0.1 else 64
        tables = np.array([(g, ls, pairs - g - ls) for g in range(pairs + 1) for ls in range(pairs + 1 - g)])
        counts = [PairedCounts(pairs, int(g), int(ls)) for g, ls, _ in tables]
        passed = np.array([exact_p_value(count, -margin) <= ALPHA for count in counts])
        failed = np.array([exact_p_value(count.swapped(), margin) <= ALPHA for count in counts])
        assert passed.any()
        assert failed.any()
        for rate in np.linspace(0, (1 - margin) / 2, 60):
            law = stats.multinomial(pairs, [rate, rate + margin, max(1 - 2 * rate - margin, 0)])
            probability = law.pmf(tables)
            assert probability[passed].sum() <= ALPHA + 1e-9
            assert probability[failed].sum() <= ALPHA + 1e-9

    @pytest.mark.parametrize(("gains", "losses"), [(0, 0), (2, 9), (40, 31), (0, 12)])
    def test_interval_ends_where_the_test_stops_rejecting(self, gains: int, losses: int) -> None:
        counts = PairedCounts(200, gains, losses)
        low, high = exact_interval(counts, ALPHA)
        assert low < counts.difference < high
        assert exact_p_value(counts, low - 1e-3) < ALPHA < exact_p_value(counts, low + 1e-3)
        assert (
            exact_p_value(counts.swapped(), -high - 1e-3)
            < ALPHA
            < exact_p_value(counts.swapped(), -high + 1e-3)
        )


@pytest.mark.parametrize("discordance", [0.0, 0.004, 0.02, 0.1] if FULL else [0.004])
def test_type_one_error_of_the_verdict_by_simulation(discordance: float) -> None:
    """A loss of exactly the margin is called non-inferior, or inferior, in at most 5% of audits."""
    margin, draws, pairs = 0.01, 20000 if FULL else 4000, 310
    noise = 3 * float(np.sqrt(ALPHA * (1 - ALPHA) / draws))
    rates = (pairs, discordance / 2, discordance / 2 + margin, margin, draws)
    assert share_of("non-inferior", *rates) <= ALPHA + noise
    assert share_of("inferior", *rates) <= ALPHA + noise


@pytest.mark.parametrize("discordance", [0.001, 0.005, 0.02, 0.05] if FULL else [0.004])
def test_needed_items_give_the_promised_power(discordance: float) -> None:
    pairs = needed_items(discordance, 0.01)
    power = share_of("non-inferior", pairs, discordance / 2, discordance / 2, 0.01, 2000)
    assert 0.77 <= power <= 0.87


def test_a_repeated_control_is_never_called_inferior_beyond_alpha() -> None:
    """Without a difference the error is far below alpha, which is the error at the margin."""
    assert share_of("inferior", 100, 0.03, 0.03, 0.01, 2000) <= ALPHA


def test_verdict_knows_which_arm_lost() -> None:
    assert verdict(200, 2, 40, 0.01) == "inferior"
    assert verdict(200, 40, 2, 0.01) == "non-inferior"
    assert verdict(200, 4, 4, 0.01) == "undecided"
    test = noninferiority_test(*scores(200, 2, 40), 0.01)
    assert test.difference == pytest.approx(-0.19)
    assert test.mcnemar_p == pytest.approx(stats.binomtest(2, 42).pvalue)


@pytest.mark.parametrize("margin", [0.0, 1.0, -0.01])
def test_refuses_a_margin_out_of_range(margin: float) -> None:
    with pytest.raises(ValueError, match="margin must lie between 0 and 1"):
        noninferiority_test([1], [1], margin)


class TestGradedScores:
    def test_few_equal_pairs_prove_nothing(self) -> None:
        test = noninferiority_test([0.5] * 20, [0.5] * 20, 0.01)
        assert test.verdict == "undecided"
        assert test.mcnemar_p is None

    def test_agrees_with_the_t_test_where_pairs_are_many(self) -> None:
        generator = np.random.default_rng(0)
        before = generator.random(4000)
        after = np.clip(before + generator.normal(0.003, 0.1, 4000), 0, 1)
        theirs = stats.ttest_rel(after, before - 0.01, alternative="greater").pvalue
        assert adjusted_p_value(PairedDifferences.of(before, after), -0.01) == pytest.approx(theirs, rel=0.05)
        interval = stats.ttest_rel(after, before).confidence_interval(0.9)
        assert adjusted_interval(PairedDifferences.of(before, after), 0.05) == pytest.approx(
            interval, abs=1e-4
        )

    def test_type_one_error_where_few_items_change_a_lot(self) -> None:
        """The hard case: 4% of the items lose half their score, all others nothing: just the margin."""
        margin, draws, pairs = 0.02, 4000, 300
        changed = np.random.default_rng(3).binomial(pairs, margin / 0.5, size=draws)
        values, counts = np.unique(changed, return_counts=True)
        wrong = sum(
            count * (adjusted_p_value(PairedDifferences(pairs, -0.5 * k, 0.25 * k), -margin) <= ALPHA)
            for k, count in zip(values, counts, strict=True)
        )
        assert wrong / draws <= ALPHA + 0.01
