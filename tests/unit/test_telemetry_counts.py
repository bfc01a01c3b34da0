"""From a block to the request's report and the step's counters: both tell the same story."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.property.step_blocks import make_blocks
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels.outcome import Column
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.block_tally import BlockTally
from vllm_asd.telemetry.counters import Counter
from vllm_asd.telemetry.log_line import IntervalLog
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.telemetry.request_report import new_report
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import StepBlocks

LIMITS = RequestLimits(budget=8.0, gate=0.25, block_cap=2)


def block(**values: Any) -> StepBlocks:
    """Seven drafts, five kept, exceptions at 1 and 3 for half a nat and a quarter."""
    return make_blocks(["a"], [{1: 0.5, 3: 0.25}], **values)


class Reports:
    """One request, its blocks added as the scheduler does."""

    def __init__(
        self, limits: RequestLimits = LIMITS, detailed: bool = False, counters: StepCounters | None = None
    ) -> None:
        self.reports = OpenReports(detailed, counters)
        self.reports.open("a", limits)

    def observe(self, decided: StepBlocks, position: int, kept: Sequence[int]) -> None:
        self.reports.observe(decided, np.array([position]), {"a": kept} if kept else {})

    def read(self) -> dict[str, Any]:
        report = self.reports.report("a")
        assert report is not None
        return report


def tally_of(decided: StepBlocks, num_kept: int) -> dict[str, Any]:
    """The figures of one block, by name."""
    tally = BlockTally.of(decided, np.array([num_kept]))
    sums = {counter.label: tally.sum(counter).item() for counter in Counter}
    return sums | {"spent": tally.spent.item(), "out_of_budget": tally.out_of_budget.item()}


class TestTally:
    def test_of_a_whole_block_is_what_the_worker_decided(self) -> None:
        tally = tally_of(block(), 6)
        assert (tally["accepted_tokens"], tally["strict_accepted_tokens"], tally["reused_tokens"]) == (
            5,
            1,
            2,
        )
        assert (tally["regret"], tally["spent"]) == (0.75, 0.75)

    @pytest.mark.parametrize(
        ("num_kept", "accepted", "exceptions", "reused"),
        [(1, 1, 0, 0), (2, 2, 1, 0), (3, 3, 1, 1), (4, 4, 2, 1), (5, 5, 2, 2), (6, 5, 2, 2)],
    )
    def test_counts_nothing_behind_a_stop(
        self, num_kept: int, accepted: int, exceptions: int, reused: int
    ) -> None:
        tally = tally_of(block(), num_kept)
        assert (tally["accepted_tokens"], tally["exceptions"], tally["reused_tokens"]) == (
            accepted,
            exceptions,
            reused,
        )
        assert tally["strict_accepted_tokens"] == 1
        # What was spent before the block is 0 here.
        assert tally["spent"] == tally["regret"] == [0, 0.5, 0.75][exceptions]

    def test_under_shadow_counts_what_was_not_emitted(self) -> None:
        tally = tally_of(block(shadow=1), 2)
        assert (tally["accepted_tokens"], tally["exceptions"], tally["reused_tokens"]) == (5, 2, 2)
        assert tally["spent"] == 0.75

    def test_is_out_of_budget_only_if_the_refused_token_was_reached(self) -> None:
        refused = block(stop=StopReason.BUDGET)
        assert tally_of(refused, 6)["out_of_budget"]
        assert not tally_of(refused, 5)["out_of_budget"]
        assert not tally_of(block(stop=StopReason.GATE), 6)["out_of_budget"]

    def test_looks_for_exceptions_only_where_there_are_some(self) -> None:
        """What stands at the positions of a block without exceptions is not read."""
        decided = block()
        decided.column(Column.EXCEPTIONS)[:] = 0
        assert tally_of(decided, 6)["exceptions"] == 0


class TestReport:
    def test_says_which_limits_are_in_force(self) -> None:
        report = new_report(RequestLimits(2.0, 0.1, 1, 0.01, shadow=True), detailed=False)
        limits = {key: report[key] for key in ("mode", "budget", "gate", "block_cap", "refill")}
        assert limits == {"mode": "shadow", "budget": 2.0, "gate": 0.1, "block_cap": 1, "refill": 0.01}
        assert new_report(RequestLimits(0.0, 0.1, 1), detailed=False)["mode"] == "strict"

    def test_the_trace_names_the_tokens_of_the_response(self) -> None:
        reports = Reports(detailed=True)
        reports.observe(block(), 10, [1, 2, 3, 4, 5, 6])
        entries = reports.read()["exception_trace"]
        named = [(e["position"], e["token_id"], e["target_token_id"], e["regret"]) for e in entries]
        assert named == [(11, 2, 91, 0.5), (13, 4, 93, 0.25)]
        assert [entry["at_stake"] for entry in entries] == [6, 4]

    def test_under_shadow_the_kept_tokens_are_those_that_were_looked_up(self) -> None:
        reports = Reports(detailed=True)
        reports.observe(block(shadow=1, details=2), 10, [1, 2])
        assert [entry["token_id"] for entry in reports.read()["exception_trace"]] == [71, 73]
        reports = Reports(detailed=True)
        reports.observe(block(shadow=1), 10, [1, 2])
        assert [entry["token_id"] for entry in reports.read()["exception_trace"]] == [None, None]

    def test_the_kept_tokens_log_probability_lies_regret_below_the_targets(self) -> None:
        reports = Reports(detailed=True)
        reports.observe(block(details=2), 0, [7, 8, 9, 9, 9, 9])
        first, second = reports.read()["exception_trace"]
        assert (first["target_logprob"], first["logprob"]) == (-2.0, -2.5)
        assert (second["target_logprob"], second["logprob"]) == (-4.0, -4.25)

    def test_without_detail_there_is_no_trace(self) -> None:
        assert "exception_trace" not in Reports().read()

    def test_a_discarded_block_changes_nothing(self) -> None:
        """The worker takes its charge back."""
        reports = Reports(detailed=True)
        before = reports.read()
        reports.observe(block(), 0, [])
        assert reports.read() == before

    def test_what_a_stop_cut_off_was_not_spent(self) -> None:
        reports = Reports()
        reports.observe(block(spent=3.75), 0, [1, 2, 3])
        assert (reports.read()["regret_spent"], reports.read()["regret"]) == (3.5, 0.5)

    def test_names_the_first_token_that_the_budget_refused(self) -> None:
        reports = Reports()
        reports.observe(block(), 0, [1] * 6)
        assert reports.read()["exhausted_at_token"] is None
        reports.observe(block(stop=StopReason.BUDGET), 6, [1] * 6)
        reports.observe(block(stop=StopReason.BUDGET), 12, [1] * 6)
        assert reports.read()["exhausted_at_token"] == 11

    def test_strict_needs_more_blocks_for_as_many_tokens(self) -> None:
        reports = Reports()
        for _ in range(4):
            reports.observe(block(), 0, [1] * 6)
        # 24 tokens at 2 per block.
        assert reports.read()["strict_blocks_estimate"] == 12.0

    def test_does_not_change_once_it_was_read(self) -> None:
        limits = RequestLimits(2.0, 0.5, 1, answer=RequestLimits(4.0, 0.25, 2))
        reports = Reports(limits, detailed=True)
        reports.observe(block(thinking=1), 0, [1] * 6)
        read, again = reports.read(), reports.read()
        reports.observe(block(thinking=1), 6, [1] * 6)
        assert read == again != reports.read()

    @pytest.mark.parametrize(
        ("blocks", "expected"),
        [
            ([(0, 3), (1, 3), (2, 1), (2, 1)], 6),
            # A block that vLLM discarded tripped it, or tokens without drafts in between.
            ([(0, 3), (1, 0), (2, 1)], 3),
            ([(0, 3), (2, 1)], 3),
            ([(0, 3), (0, 3)], None),
        ],
    )
    def test_names_the_token_from_which_it_is_strict(
        self, blocks: list[tuple[int, int]], expected: int | None
    ) -> None:
        reports, position = Reports(AsdConfig(asd_guard="on").limits), 0
        for guard, emitted in blocks:
            decided = make_blocks(["a"], [{}], 2, 2, guard=guard)
            reports.observe(decided, position, [1] * emitted)
            position += emitted
        report = reports.read()
        assert (report["guard"], report["guarded_at_token"]) == ("on", expected)


class TestPhases:
    LIMITS = RequestLimits(2.0, 0.5, 1, 0.01, answer=RequestLimits(4.0, 0.25, 2))

    @staticmethod
    def block(thinking: bool, spent: float, stop: StopReason = StopReason.END) -> StepBlocks:
        return make_blocks(["a"], [{1: 0.25}], 3, 2, thinking=thinking, spent=spent, stop=stop)

    def test_the_report_says_what_each_phase_paid(self) -> None:
        reports = Reports(self.LIMITS)
        assert (reports.read()["mode"], reports.read()["budget"]) == ("enforce", 2.0)
        reports.observe(self.block(True, 0.25), 0, [1, 2, 3])
        reports.observe(self.block(True, 0.5, StopReason.BUDGET), 3, [1, 2, 3])
        reports.observe(self.block(False, 0.25), 6, [1, 2, 3])
        reports.observe(self.block(False, 0.5), 9, [])  # vLLM threw it away
        reports.observe(self.block(False, 0.5, StopReason.BUDGET), 9, [1, 2, 3])
        report = reports.read()
        assert report["regret_spent"] == 1.0
        assert (report["exceptions"], report["exhausted_at_token"]) == (4, 5)
        own = {"regret_spent": 0.5, "exceptions": 2}
        limits = {"budget": 2.0, "gate": 0.5, "block_cap": 1, "refill": 0.01}
        assert report["phases"]["reasoning"] == {**limits, **own, "exhausted_at_token": 5}
        limits = {"budget": 4.0, "gate": 0.25, "block_cap": 2, "refill": 0.0}
        assert report["phases"]["answer"] == {**limits, **own, "exhausted_at_token": 11}

    def test_one_without_a_budget_is_not_exhausted(self) -> None:
        """Strict by wish: a request that leaves its answer alone must not count as one that ran out."""
        counters = StepCounters()
        reports = Reports(RequestLimits(2.0, 0.5, 1, answer=RequestLimits(0.0, 0.5, 1)), counters=counters)
        reports.observe(self.block(False, 0.0, StopReason.BUDGET), 0, [1, 2, 3])
        report = reports.read()
        assert report["exhausted_at_token"] is report["phases"]["answer"]["exhausted_at_token"] is None
        assert (counters.take() or {})["exhausted_requests"] == 0
        reports.observe(self.block(True, 2.0, StopReason.BUDGET), 3, [1, 2, 3])
        assert reports.read()["exhausted_at_token"] == 5
        assert (counters.take() or {})["exhausted_requests"] == 1

    def test_there_are_none_with_one_pool(self) -> None:
        reports = Reports()
        reports.observe(block(spent=0.25), 0, [1] * 6)
        assert "phases" not in reports.read()
        assert reports.read()["regret_spent"] == 0.25


class TestCounters:
    def test_read_a_requests_regret_after_its_last_block(self) -> None:
        counters = StepCounters()
        reports = Reports(counters=counters)
        reports.reports.close("a")
        reports.observe(block(), 0, [1] * 6)
        reports.reports.settle()
        assert (counters.take() or {})["request_regret"] == [0.75]

    @pytest.mark.parametrize("shadow", [False, True])
    def test_leave_a_strict_requests_regret_out_and_count_its_blocks(self, shadow: bool) -> None:
        counters = StepCounters()
        reports = Reports(RequestLimits(0.0, 0.25, 2, shadow=shadow), counters=counters)
        reports.observe(make_blocks(["a"], [{}]), 0, [1] * 6)
        reports.reports.close("a")
        reports.reports.settle()
        counts = counters.take() or {}
        assert (counts["blocks"], counts["request_regret"]) == ({"gate": 1}, [])

    @pytest.mark.parametrize("counts_shadow", [False, True])
    def test_leave_those_out_who_only_look_where_others_are_relaxed(self, counts_shadow: bool) -> None:
        counters = StepCounters()
        reports = OpenReports(False, counters, counts_shadow)
        reports.open("a", RequestLimits(8.0, 0.25, 2, shadow=True))
        reports.observe(block(shadow=1), np.array([0]), {"a": [1, 2]})
        reports.close("a")
        reports.settle()
        assert (counters.take() is not None) == counts_shadow

    def test_a_row_is_used_again_when_its_request_has_ended(self) -> None:
        counters = StepCounters()
        reports = OpenReports(True, counters)
        for number in range(500):
            reports.open(f"{number}", LIMITS)
            blocks = make_blocks([f"{number}"], [{1: 0.5}])
            reports.observe(blocks, np.array([0]), {f"{number}": [1] * 6})
            report = reports.report(f"{number}")
            assert report is not None
            assert (report["exceptions"], len(report["exception_trace"])) == (1, 1)
            reports.close(f"{number}")
            reports.close(f"{number}")
            reports.settle()
        assert len(reports._totals) == 64
        assert (counters.take() or {})["request_regret"] == [0.5] * 500

    def test_there_is_room_for_any_number_of_requests(self) -> None:
        reports = OpenReports(False)
        ids = [f"{number}" for number in range(300)]
        for request_id in ids:
            reports.open(request_id, LIMITS)
        blocks = make_blocks(ids, [{1: 0.5}] * 300, spent=1.0)
        blocks.column(Column.SPENT)[:] = range(300)
        reports.observe(blocks, np.zeros(300, np.int64), dict.fromkeys(ids, [1] * 6))
        assert [(reports.report(i) or {})["regret_spent"] for i in ids] == list(range(300))

    def test_an_id_that_was_given_again_before_the_step_ended(self) -> None:
        reports = Reports()
        reports.reports.close("a")
        reports.reports.open("a", LIMITS)
        reports.reports.settle()
        reports.observe(block(), 0, [1] * 6)
        assert reports.read()["exceptions"] == 2


class TestLogLine:
    def test_tells_exceptions_regret_and_gain(self) -> None:
        counters, log = StepCounters(), IntervalLog()
        Reports(counters=counters).observe(block(), 0, [1] * 6)
        log.observe(counters.take() or {})
        line = log.take() or ""
        assert "Exceptions: 2, Regret: 0.75 nats" in line
        assert "Tokens per block: 6.00 (strict: 2.00, gain: +200.0%)" in line

    def test_is_silent_when_nothing_was_verified(self) -> None:
        log = IntervalLog()
        assert log.take() is None
