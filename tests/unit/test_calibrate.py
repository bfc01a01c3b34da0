"""The parts of a calibration: what it reads off traces, what it tries, what it drops, what it picks."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

pytest.importorskip("openai")

from vllm_asd.config import RequestLimits
from vllm_asd.tools.answers import Answer
from vllm_asd.tools.calibrate.grid import Grid, Setting
from vllm_asd.tools.calibrate.outcome import Caps, Outcome, compare, measure_ledgers
from vllm_asd.tools.calibrate.rejections import first_rejections
from vllm_asd.tools.calibrate.search import NothingMeetsCaps, answers_needed, search

CAPS = Caps(regret=3.0, exceptions=8.0)
GRID = Grid(gate_factors=(0.25, 0.5, 1, 2), block_caps=(1, 2), budgets=(2, 8), refills=(0, 0.03))


def answer(arm: str = "strict", rounds: int = 10, accepted: int = 10, **changes: object) -> Answer:
    made = Answer(
        task="t",
        id="1",
        arm=arm,
        tokens=rounds + accepted,
        rounds=rounds,
        accepted=accepted,
        strict_accepted=None,
        exceptions=0,
        regret_spent=0.0,
        exhausted_at=None,
        digest=arm,
        token_ids=list(range(rounds + accepted)),
        finish_reason="length",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def outcome(setting: Setting, prompts: int = 12, gain: float = 1.1, regret: float = 1.0) -> Outcome:
    interval = (gain, gain - 0.1, gain + 0.1)
    return Outcome(setting, prompts, 100, interval, regret, regret, 10.0, 1.0, 0.5, 1.0, setting)


def test_starting_gate_is_the_lower_quartile_of_the_price_without_ties() -> None:
    """Prices 1 to 101, and as many ties: the quartile is of the former, the tie share of all."""
    trace = [(i, 2.0 * price, 2) for i, price in enumerate(range(1, 102))]
    ties = [(i, 0.0, 5) for i in range(101)]
    found = first_rejections([answer(trace=trace), answer(trace=ties)])
    assert found.gate == pytest.approx(26.0)
    assert found.ties == pytest.approx(0.5)
    assert found.by_stake == {2: (101, 102.0), 5: (101, 0.0)}


def test_what_stands_behind_a_spent_budget_is_left_out() -> None:
    """From there on only what was cheap enough is in the trace, which would pull the quartile down."""
    trace = [(i, 8.0 if i < 30 else 1.0, 2) for i in range(100)]
    assert first_rejections([answer(trace=trace, exhausted_at=30)]).count == 30
    assert first_rejections([answer(trace=trace, exhausted_at=30)]).gate == 4.0


def test_too_few_rejections_are_refused() -> None:
    trace = [(i, 1.0, 2) for i in range(100)]
    with pytest.raises(ValueError, match="3 strict rejections in 1 answers are too few"):
        first_rejections([answer(trace=trace[:3])])


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (RequestLimits(1000, 1.0, 5, 1), "asd_gate=1 is narrower than the 5"),
        (RequestLimits(1000, 20, 1, 1), "asd_block_cap=1 is narrower than the 2"),
        (RequestLimits(4, 20, 5, 1), "asd_budget=4 is narrower than the 8"),
        (RequestLimits(1000, 20, 5, 0), "asd_refill=0 is narrower than the 0.03"),
        (RequestLimits(1000, 20, 5, 1, shadow=True), "only looks"),
    ],
)
def test_server_that_would_refuse_the_grid_is_refused_first(limits: RequestLimits, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GRID.refuse_narrower(limits)


def test_compared_rates_are_per_hundred_tokens_of_all_answers_together() -> None:
    """Two answers of 20 and 40 tokens: a mean of means would weigh the short one too much."""
    control = [answer(rounds=10, accepted=10), answer(rounds=30, accepted=10)]
    relaxed = [
        answer(
            "x", rounds=5, accepted=15, exceptions=3, regret_spent=1.5, token_ids=[0, 1, 9, *range(3, 20)]
        ),
        answer("strict", rounds=20, accepted=20),
    ]
    found = compare(Setting(0.25, 2, 8, 0), control, relaxed)
    assert found.gain[0] == pytest.approx((60 / 25) / (60 / 40))
    assert found.regret == pytest.approx(2.5)
    assert found.exceptions == pytest.approx(5.0)
    assert found.parting == pytest.approx((2 + 40) / 2)
    assert found.changed == 0.5


def test_budget_that_never_ran_out_spares_the_larger_ones() -> None:
    """Only a setting whose stricter ledger refused something has to run itself."""
    settings = [Setting(gate, 1, budget, 0) for gate in (0.1, 0.4) for budget in (2, 8)]
    asked: list[Setting] = []

    def run(some: Sequence[Setting]) -> list[Outcome]:
        asked.extend(some)
        return [replace(outcome(s), exhausted=float(s.gate > 0.2 and s.budget < 8)) for s in some]

    found = measure_ledgers(settings, run)
    assert [o.setting for o in found] == settings
    assert [o.ran for o in found] == [settings[0], settings[0], settings[2], settings[3]]
    assert asked == [settings[0], settings[2], settings[3]]


def test_search_finds_what_trying_everything_would_at_a_fraction_of_the_answers() -> None:
    """Gain and regret rise with the gate, the cap and the budget: the best lies at the edge of the cap."""
    settings = GRID.settings(0.4)
    answers = 0
    seen: dict[Setting, int] = {}

    def run(setting: Setting, prompts: int) -> Outcome:
        regret = 4 * setting.gate + 0.3 * setting.block_cap + 0.1 * setting.budget + 10 * setting.refill
        return outcome(setting, prompts, gain=1 + regret / 10, regret=regret)

    def measure(some: Sequence[Setting], prompts: int) -> list[Outcome]:
        nonlocal answers
        for setting in some:
            answers += prompts - seen.get(setting, 0)
            seen[setting] = prompts
        return [run(setting, prompts) for setting in some]

    found = search(settings, 48, CAPS, measure)
    allowed = [o for o in (run(s, 48) for s in settings) if not CAPS.excess(o)]
    assert found.best == max(allowed, key=lambda o: o.gain[0])
    assert answers == answers_needed(len(settings), 48) < len(settings) * 48 / 2
    assert {o.setting for o in found.tried} == set(settings)


def test_search_goes_on_to_the_dropped_when_every_finalist_breaks_a_cap() -> None:
    """On few prompts all looks well; on all of them only the dullest setting does."""
    settings = GRID.settings(0.4)

    def measure(some: Sequence[Setting], prompts: int) -> list[Outcome]:
        costly = {s: prompts == 48 and s != settings[0] for s in some}
        return [outcome(s, prompts, 1 + s.gate, 9.0 if costly[s] else 1.0) for s in some]

    assert search(settings, 48, CAPS, measure).best.setting == settings[0]


def test_search_without_an_allowed_setting_names_the_nearest() -> None:
    settings = [Setting(gate, 2, 8, 0) for gate in (0.1, 0.2, 0.4)]
    with pytest.raises(NothingMeetsCaps, match=r"the nearest, g0\.1 .*raise the caps"):
        search(settings, 12, CAPS, lambda some, n: [outcome(s, n, regret=100 * s.gate) for s in some])
