"""Reports and counters added up a step at a time, against the same a block at a time in plain Python."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property import report_reference as reference
from tests.property.step_blocks import make_blocks
from vllm_asd.config import RequestLimits
from vllm_asd.kernels.outcome import Column
from vllm_asd.telemetry.last_block import LastBlock
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.telemetry.step_counters import StepCounters
from vllm_asd.telemetry.step_report import StepBlocks

WIDTH = 9  # more than 8: numpy adds longer rows in another order
CAP = 4
REGRETS = st.sampled_from([0.0, 0.1, 0.3, 1 / 3]) | st.floats(0, 2)

flat_limits = st.builds(
    RequestLimits,
    budget=st.sampled_from([0.0, 1.0, 8.0]),
    gate=st.sampled_from([0.0, 0.25]),
    block_cap=st.integers(0, CAP),
    refill=st.just(0.0),
    shadow=st.booleans(),
    guard=st.booleans(),
)
limits_strategy = st.one_of(
    flat_limits,
    st.builds(
        RequestLimits,
        budget=st.sampled_from([0.0, 2.0]),
        gate=st.just(0.5),
        block_cap=st.just(2),
        shadow=st.booleans(),
        answer=flat_limits,
    ),
)


@dataclass
class Step:
    """One step.

    Attributes:
        blocks: What the worker decided.
        kept: The tokens that went out.
        positions: Output tokens before.
    """

    blocks: StepBlocks
    kept: dict[str, list[int]]
    positions: np.ndarray


@dataclass
class Run:
    """Requests and their steps."""

    limits: dict[str, RequestLimits]
    sampled: dict[str, bool]
    steps: list[Step]


@st.composite
def block_strategy(draw: Any, request_id: str, shadow: bool, details: int) -> StepBlocks:
    num_draft = draw(st.integers(1, WIDTH))
    accepted = draw(st.integers(0, num_draft))
    places = st.sets(st.integers(0, accepted - 1), max_size=CAP) if accepted else st.just(set())
    exceptions = {position: draw(REGRETS) for position in sorted(draw(places))}
    return make_blocks(
        [request_id], [exceptions], num_draft, accepted, details, WIDTH,
        stop=draw(st.integers(0, 5)), spent=draw(REGRETS), shadow=shadow,
        thinking=draw(st.integers(-1, 1)), guard=draw(st.sampled_from([0, 0, 0, 1, 2])),
    )  # fmt: skip


@st.composite
def runs(draw: Any, detailed: bool) -> Run:
    limits = {f"r{i}": draw(limits_strategy) for i in range(draw(st.integers(1, 4)))}
    sampled = {request_id: draw(st.booleans()) for request_id in limits}
    position = dict.fromkeys([*limits, "unknown"], 0)
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        ids = draw(st.lists(st.sampled_from([*limits, "unknown"]), min_size=1, unique=True))
        rows = [
            draw(block_strategy(i, i in limits and limits[i].shadow, CAP if detailed else 0)) for i in ids
        ]
        kept: dict[str, list[int]] = {}
        for request_id, row in zip(ids, rows, strict=True):
            column = Column.STRICT_ACCEPTED if row.column(Column.SHADOW)[0] else Column.ACCEPTED
            emitted = int(row.column(column)[0]) + 1
            if number := draw(st.sampled_from([emitted, emitted, emitted, *range(emitted)])):
                kept[request_id] = list(range(100, 100 + number))
        blocks = StepBlocks(ids, np.concatenate([row.table for row in rows]), WIDTH)
        at = np.array([position[i] for i in ids])
        steps.append(Step(blocks, kept, at))
        for request_id in ids:
            position[request_id] += len(kept.get(request_id, ()))
    return Run(limits, sampled, steps)


def add_to_reference(
    step: Step, reports: dict[str, reference.RequestReport], counters: reference.StepCounters
) -> None:
    for (request_id, block), position in zip(
        reference.read_blocks(step.blocks), step.positions.tolist(), strict=True
    ):
        report = reports.get(request_id)
        if report is None:
            continue
        was_exhausted, was_guarded = report.is_exhausted, report.is_guarded
        tally = report.observe(block, position, step.kept.get(request_id, []))
        if tally is not None and counters.counts(report):
            counters.add(tally)
            if report.is_exhausted and not was_exhausted:
                counters.add_exhausted()
            if report.is_guarded and not was_guarded:
                counters.add_guarded()


def assert_same_counts(fast: dict[str, Any] | None, slow: dict[str, Any] | None) -> None:
    if fast is None or slow is None:
        assert fast is slow
        return
    # Added in another order.
    assert math.isclose(fast.pop("regret"), slow.pop("regret"), abs_tol=1e-12)
    assert fast == slow
    for value in (*fast.values(), *fast["blocks"].values(), *fast["request_regret"]):
        assert type(value) in (int, float, dict, list), "vLLM's messages hold plain values"


def types(value: Any) -> Any:
    """The types of a report's values, and the order of its fields."""
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}, list(value)
    return [types(item) for item in value] if isinstance(value, list) else type(value)


@pytest.mark.parametrize("detailed", [False, True], ids=["summary", "detailed"])
@given(data=st.data())
def test_reports_and_counters_are_those_of_single_blocks(detailed: bool, data: st.DataObject) -> None:
    run = data.draw(runs(detailed))
    counts_shadow = data.draw(st.booleans())
    counters, slow_counters = StepCounters(), reference.StepCounters(counts_shadow)
    reports = OpenReports(detailed, counters, counts_shadow)
    slow = {i: reference.RequestReport(run.limits[i], detailed, run.sampled[i]) for i in run.limits}
    for request_id, limits in run.limits.items():
        reports.open(request_id, limits, run.sampled[request_id])
    for step in run.steps:
        at = np.full_like(step.positions, -99)
        located = reports.located(step.blocks)
        at[located] = step.positions[located]
        reports.observe(step.blocks, at, step.kept)
        add_to_reference(step, slow, slow_counters)
        for request_id in slow:
            fast_report = reports.report(request_id)
            assert fast_report == slow[request_id].payload
            assert types(fast_report) == types(slow[request_id].payload)
        if len(slow) > 1 and data.draw(st.booleans()):
            request_id = data.draw(st.sampled_from(sorted(slow)))
            reports.close(request_id)
            slow_counters.end(slow.pop(request_id))
        reports.settle()
        assert_same_counts(counters.take(), slow_counters.take())


@pytest.mark.parametrize("detailed", [False, True], ids=["summary", "detailed"])
@given(data=st.data())
def test_a_block_that_is_cut_afterwards_is_one_that_was_cut_at_once(
    detailed: bool, data: st.DataObject
) -> None:
    """As the front end does where it finds a stop string."""
    run = data.draw(runs(detailed))
    reports, at_once = OpenReports(detailed), OpenReports(detailed)
    for request_id, limits in run.limits.items():
        reports.open(request_id, limits, run.sampled[request_id])
        at_once.open(request_id, limits, run.sampled[request_id])
    for step in run.steps[:-1]:
        for each in (reports, at_once):
            each.observe(step.blocks, step.positions, step.kept)
    last = run.steps[-1]
    reports.observe(last.blocks, last.positions, last.kept, cuttable=set(last.kept))
    cut = {i: tokens[: data.draw(st.integers(1, len(tokens)))] for i, tokens in last.kept.items()}
    at_once.observe(last.blocks, last.positions, cut)
    for request_id in run.limits:
        report, block = reports.report(request_id), reports.last_block(request_id)
        assert report is not None
        if block is None:
            assert request_id not in last.kept or request_id not in last.blocks.request_ids
            continue
        before = reports.report(request_id)
        packed = LastBlock.unpack(block.pack())
        assert packed.cut(report, len(cut[request_id])) == at_once.report(request_id)
        assert report == before
