"""From a block to the request's report and the step's counters: both tell the same story."""

import math
import random
from collections import Counter

import pytest

from vllm_asd.config import RequestLimits
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.block_tally import BlockTally
from vllm_asd.telemetry.log_line import IntervalLog
from vllm_asd.telemetry.request_report import RequestReport
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import BlockException, BlockReport

LIMITS = RequestLimits(budget=8.0, gate=0.25, block_cap=2)


def block(
    accepted: int = 5,
    exceptions: tuple[tuple[int, float], ...] = ((1, 0.5), (3, 0.25)),
    stop: StopReason = StopReason.GATE,
    num_draft: int = 7,
    shadow: bool = False,
) -> BlockReport:
    kept = tuple(BlockException(position, 90 + position, regret) for position, regret in exceptions)
    strict = kept[0].position if kept else accepted
    reused = accepted - strict - len(kept) if kept else 0
    regret = sum(exception.regret for exception in kept)
    return BlockReport(num_draft, accepted, strict, reused, stop, regret, regret, shadow, kept)


class TestTally:
    def test_of_a_whole_block_is_what_the_worker_decided(self) -> None:
        tally = BlockTally.of(block(), num_emitted=6)
        assert (tally.accepted, tally.strict_accepted, tally.reused) == (5, 1, 2)
        assert tally.regret == 0.75
        assert tally.stop == "gate"

    @pytest.mark.parametrize(
        ("num_emitted", "accepted", "exceptions", "reused"),
        [(1, 1, 0, 0), (2, 2, 1, 0), (3, 3, 1, 1), (4, 4, 2, 1), (5, 5, 2, 2), (6, 5, 2, 2)],
    )
    def test_counts_nothing_behind_a_stop(
        self, num_emitted: int, accepted: int, exceptions: int, reused: int
    ) -> None:
        tally = BlockTally.of(block(), num_emitted)
        assert (tally.accepted, len(tally.exceptions), tally.reused) == (accepted, exceptions, reused)
        assert tally.strict_accepted == 1

    def test_under_shadow_counts_what_was_not_emitted(self) -> None:
        tally = BlockTally.of(block(shadow=True), num_emitted=2)
        assert (tally.accepted, len(tally.exceptions), tally.reused) == (5, 2, 2)

    def test_is_out_of_budget_only_if_the_refused_token_was_reached(self) -> None:
        refused = block(stop=StopReason.BUDGET)
        assert BlockTally.of(refused, num_emitted=6).out_of_budget
        assert not BlockTally.of(refused, num_emitted=5).out_of_budget
        assert not BlockTally.of(block(stop=StopReason.GATE), num_emitted=6).out_of_budget


class TestRequestReport:
    def test_says_which_limits_are_in_force(self) -> None:
        payload = RequestReport(RequestLimits(2.0, 0.1, 1, 0.01, shadow=True), detailed=False).payload
        limits = {key: payload[key] for key in ("mode", "budget", "gate", "block_cap", "refill")}
        assert limits == {"mode": "shadow", "budget": 2.0, "gate": 0.1, "block_cap": 1, "refill": 0.01}
        assert RequestReport(RequestLimits(0.0, 0.1, 1), detailed=False).is_strict

    def test_the_trace_names_the_tokens_of_the_response(self) -> None:
        report = RequestReport(LIMITS, detailed=True)
        report.observe(block(), output_position=10, new_token_ids=[1, 2, 3, 4, 5, 6])
        entries = report.payload["exception_trace"]
        named = [(e["position"], e["token_id"], e["target_token_id"], e["regret"]) for e in entries]
        assert named == [(11, 2, 91, 0.5), (13, 4, 93, 0.25)]

    def test_the_kept_tokens_log_probability_lies_regret_below_the_targets(self) -> None:
        report = RequestReport(LIMITS, detailed=True)
        exceptions = (BlockException(0, 91, 0.5, token_id=7, target_logprob=-1.0),)
        report.observe(block()._replace(exceptions=exceptions), 0, [7, 8, 9, 9, 9, 9])
        (entry,) = report.payload["exception_trace"]
        assert (entry["target_logprob"], entry["logprob"]) == (-1.0, -1.5)

    def test_without_detail_there_is_no_trace(self) -> None:
        assert "exception_trace" not in RequestReport(LIMITS, detailed=False).payload

    def test_a_discarded_block_is_charged_but_not_counted(self) -> None:
        report = RequestReport(LIMITS, detailed=True)
        assert report.observe(block(), 0, []) is None
        assert report.payload["regret_spent"] == 0.75
        assert report.payload["exceptions"] == report.payload["verified_blocks"] == 0

    def test_names_the_first_token_that_the_budget_refused(self) -> None:
        report = RequestReport(LIMITS, detailed=False)
        report.observe(block(), 0, [1] * 6)
        assert report.payload["exhausted_at_token"] is None
        report.observe(block(stop=StopReason.BUDGET), 6, [1] * 6)
        report.observe(block(stop=StopReason.BUDGET), 12, [1] * 6)
        assert report.payload["exhausted_at_token"] == 11

    def test_strict_needs_more_blocks_for_as_many_tokens(self) -> None:
        report = RequestReport(LIMITS, detailed=False)
        for _ in range(4):
            report.observe(block(), 0, [1] * 6)
        # 24 tokens at 2 per block.
        assert report.payload["strict_blocks_estimate"] == 12.0


class TestStepCounters:
    def test_equal_the_sum_of_the_reports(self) -> None:
        generator = random.Random(0)
        counters, reports = StepCounters(), [RequestReport(LIMITS, detailed=False) for _ in range(20)]
        totals: Counter[str] = Counter()
        stops: Counter[str] = Counter()
        regrets: list[float] = []
        for step in range(200):
            report = generator.choice(reports)
            before, was_guarded = report.is_exhausted, report.is_guarded
            decided = block(
                accepted=generator.randint(2, 7),
                exceptions=((1, generator.random()),),
                stop=generator.choice(list(StopReason)),
            )._replace(guard=generator.choice([0] * 20 + [1, 2]))
            tally = report.observe(decided, step, [5] * generator.randint(0, decided.accepted + 1))
            if tally is not None:
                counters.add(tally)
            if report.is_exhausted and not before:
                counters.add_exhausted()
            if report.is_guarded and not was_guarded:
                counters.add_guarded()
            if step % 7 == 0 and (taken := counters.take()) is not None:
                _add(totals, stops, regrets, taken)
        for report in reports:
            counters.end(report)
        last = counters.take()
        assert last is not None
        _add(totals, stops, regrets, last)
        for name in ("exceptions", "reused_tokens", "accepted_tokens", "strict_accepted_tokens"):
            assert totals[name] == sum(report.payload[name] for report in reports)
        assert totals["exhausted_requests"] == sum(report.is_exhausted for report in reports)
        assert totals["guarded_requests"] == sum(report.is_guarded for report in reports) > 0
        assert math.isclose(totals["regret"], sum(report.payload["regret"] for report in reports))
        assert regrets == [report.payload["regret"] for report in reports]
        for stop, count in stops.items():
            assert count == sum(report.payload["blocks_by_stop"][stop] for report in reports)

    def test_read_a_requests_regret_after_its_last_block(self) -> None:
        counters, report = StepCounters(), RequestReport(LIMITS, detailed=False)
        counters.end(report)
        report.observe(block(), 0, [1] * 6)
        assert (counters.take() or {})["request_regret"] == [0.75]

    def test_leave_strict_requests_out(self) -> None:
        counters = StepCounters()
        counters.end(RequestReport(RequestLimits(0.0, 0.25, 2), detailed=False))
        assert counters.take() is None


def _add(totals: Counter[str], stops: Counter[str], regrets: list[float], taken: dict[str, object]) -> None:
    stops.update(taken.pop("blocks"))  # type: ignore[call-overload]
    regrets.extend(taken.pop("request_regret"))  # type: ignore[arg-type]
    totals.update(taken)


class TestLogLine:
    def test_tells_exceptions_regret_and_gain(self) -> None:
        counters, log = StepCounters(), IntervalLog()
        counters.add(BlockTally.of(block(), num_emitted=6))
        log.observe(counters.take() or {})
        line = log.take() or ""
        assert "Exceptions: 2, Regret: 0.75 nats" in line
        assert "Tokens per block: 6.00 (strict: 2.00, gain: +200.0%)" in line

    def test_is_silent_when_nothing_was_verified(self) -> None:
        log = IntervalLog()
        assert log.take() is None
