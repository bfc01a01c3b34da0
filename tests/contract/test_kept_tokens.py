"""vLLM's real schedulers throw tokens away in several ways; the worker is told of each, once."""

import contextlib
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.v1.request import RequestStatus

from tests.contract.schedulers import EOS, NUM_DRAFT, Driver, notice
from tests.property.step_blocks import make_blocks
from vllm_asd.upstream import wire
from vllm_asd.upstream.commit import ATTRIBUTE, Notice, Rollback
from vllm_asd.upstream.kept_tokens import KeptTokens
from vllm_asd.upstream.patching import APPLIED

BLOCK = [11, 12, 13, 14, 15]


@pytest.fixture(autouse=True)
def _wired() -> Iterator[None]:
    was_applied = wire.TO_DICT in APPLIED
    wire.install()
    yield
    if not was_applied:
        APPLIED.undo_all()


@pytest.fixture
def sync(tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> Driver:
    return Driver(tiny_llama_dir, tiny_llama_drafter_dir, is_async=False)


@pytest.fixture
def ahead(tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> Driver:
    """Async scheduling: a step is scheduled before the one before it has ended."""
    return Driver(tiny_llama_dir, tiny_llama_drafter_dir, is_async=True)


def prefill(driver: Driver, **request: Any) -> None:
    """Step 1."""
    driver.add(**request)
    driver.update(driver.schedule(), {"a": [9]})
    driver.draft("a")


def test_steps_are_numbered_and_committed_in_order(ahead: Driver) -> None:
    ahead.add()
    schedules = [ahead.schedule(), ahead.schedule()]
    ahead.update(schedules[0], {"a": [9]})
    schedules.append(ahead.schedule())
    ahead.update(schedules[1], {"a": BLOCK[:1]})
    schedules.append(ahead.schedule())
    assert [notice(s) for s in schedules] == [
        Notice(1, 0, {}),
        Notice(2, 0, {}),
        Notice(3, 1, {}),
        Notice(4, 2, {}),
    ]


def test_what_was_kept_whole_needs_no_word(sync: Driver) -> None:
    prefill(sync)
    sync.update(sync.schedule(), {"a": BLOCK})
    assert notice(sync.schedule()).rollbacks == {}


class TestResetOfThePrefixCache:
    def test_takes_the_steps_in_flight_back_once(self, ahead: Driver) -> None:
        prefill(ahead)
        second, third = ahead.schedule(), ahead.schedule()
        ahead.scheduler.reset_prefix_cache(reset_running_requests=True)
        fourth = ahead.schedule()
        assert notice(fourth).rollbacks == {"a": Rollback(1, None)}
        for stale in (second, third):
            outputs, _ = ahead.update(stale, {"a": BLOCK[:2]})
            assert outputs == {}
            assert notice(ahead.schedule()).rollbacks == {}
        outputs, _ = ahead.update(fourth, {"a": [8]})
        assert outputs["a"].new_token_ids == [8]

    def test_has_nothing_to_take_back_between_steps(self, sync: Driver) -> None:
        prefill(sync)
        sync.scheduler.reset_prefix_cache(reset_running_requests=True)
        assert notice(sync.schedule()).rollbacks == {}

    def test_twice_before_the_next_schedule_is_once(self, ahead: Driver) -> None:
        prefill(ahead)
        ahead.schedule()
        for _ in range(2):
            ahead.scheduler.reset_prefix_cache(reset_running_requests=True)
        assert notice(ahead.schedule()).rollbacks == {"a": Rollback(1, None)}

    def test_does_not_take_a_step_back_twice(self, ahead: Driver) -> None:
        """A second reset while output that the first one dropped is in flight."""
        prefill(ahead)
        ahead.schedule()
        ahead.scheduler.reset_prefix_cache(reset_running_requests=True)
        third = ahead.schedule()
        assert notice(third).rollbacks == {"a": Rollback(1, None)}
        ahead.scheduler.reset_prefix_cache(reset_running_requests=True)
        # Step 2 has been taken back; step 3 is what is left.
        assert notice(ahead.schedule()).rollbacks == {"a": Rollback(2, None)}

    def test_of_a_request_that_is_aborted_then(self, ahead: Driver) -> None:
        prefill(ahead)
        ahead.schedule()
        ahead.scheduler.reset_prefix_cache(reset_running_requests=True)
        ahead.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
        ahead.add("b")
        assert notice(ahead.schedule()).rollbacks == {}


def test_an_ordinary_preemption_delivers_what_is_in_flight(ahead: Driver) -> None:
    prefill(ahead)
    second = ahead.schedule()
    ahead.scheduler._preempt_request(ahead.scheduler.running.pop(), 0.0)
    ahead.add("b")
    assert notice(ahead.schedule()).rollbacks == {}
    outputs, _ = ahead.update(second, {"a": BLOCK})
    assert outputs["a"].new_token_ids == BLOCK
    assert notice(ahead.schedule()).rollbacks == {}


class TestSession:
    @pytest.mark.parametrize("is_queued", [False, True], ids=["waiting", "next chunk queued"])
    def test_a_chunk_ends_inside_a_block(self, sync: Driver, is_queued: bool) -> None:
        prefill(sync, max_tokens=3, resumable=True)
        if is_queued:
            sync.add(resumable=True)
        outputs, _ = sync.update(sync.schedule(), {"a": BLOCK})
        assert outputs["a"].new_token_ids == BLOCK[:2]
        sync.add("b")
        assert notice(sync.schedule()).rollbacks == {"a": Rollback(2, 2)}

    @pytest.mark.parametrize("tokens", [[11, EOS], [11, EOS, 13, 14]], ids=["at the end", "inside"])
    @pytest.mark.parametrize("is_queued", [False, True], ids=["waiting", "next chunk queued"])
    def test_a_chunk_ends_with_a_step_in_flight(
        self, ahead: Driver, is_queued: bool, tokens: list[int]
    ) -> None:
        prefill(ahead, resumable=True)
        if is_queued:
            ahead.add(resumable=True)
        second, third = ahead.schedule(), ahead.schedule()
        outputs, _ = ahead.update(second, {"a": tokens})
        assert outputs["a"].new_token_ids == [11, EOS]
        ahead.add("b")
        fourth = ahead.schedule()
        assert notice(fourth).rollbacks == {"a": Rollback(2, 2)}
        outputs, _ = ahead.update(third, {"a": BLOCK})
        assert outputs == {}
        assert notice(ahead.schedule()).rollbacks == {}

    def test_a_chunk_that_ends_with_its_block_between_steps(self, sync: Driver) -> None:
        prefill(sync, resumable=True)
        sync.update(sync.schedule(), {"a": [11, EOS]})
        sync.add("b")
        assert notice(sync.schedule()).rollbacks == {}

    def test_a_chunks_last_block_counts_when_the_next_chunk_is_queued(self, sync: Driver) -> None:
        """By then vLLM has cleared the request's output."""
        prefill(sync, resumable=True)
        sync.add(resumable=True)
        blocks = make_blocks(["a"], [{1: 0.5}], NUM_DRAFT, 4)
        outputs, counts = sync.update(sync.schedule(), {"a": [11, 12, EOS]}, blocks)
        assert (counts["exceptions"], counts["accepted_tokens"]) == (1, 3)
        report = outputs["a"].spec_decode_metrics.asd
        assert report["exception_trace"][0]["position"] == 2
        assert report["exception_trace"][0]["token_id"] == 12

    def test_the_report_of_a_chunk_does_not_change_when_the_session_goes_on(self, sync: Driver) -> None:
        """Another thread may still encode it."""
        prefill(sync, resumable=True)
        sync.add(resumable=True)
        blocks = make_blocks(["a"], [{1: 0.5}], NUM_DRAFT, 4)
        outputs, _ = sync.update(sync.schedule(), {"a": [11, 12, EOS]}, blocks)
        sent = outputs["a"].spec_decode_metrics
        before = repr((vars(sent), sent.asd))
        sync.update(sync.schedule(), {"a": [9]})
        sync.draft("a")
        blocks = make_blocks(["a"], [{1: 0.5}], NUM_DRAFT, 4)
        outputs, _ = sync.update(sync.schedule(), {"a": [11, 12, EOS]}, blocks)
        assert outputs["a"].spec_decode_metrics.asd["exceptions"] == 2
        assert repr((vars(sent), sent.asd)) == before


def test_a_request_that_ends_inside_a_block_needs_no_word(sync: Driver) -> None:
    prefill(sync, max_tokens=3)
    sync.update(sync.schedule(), {"a": BLOCK})
    sync.add("b")
    assert notice(sync.schedule()).rollbacks == {}


class TestFailedLoad:
    @staticmethod
    def block_of(driver: Driver) -> set[int]:
        (blocks,) = driver.scheduler.kv_cache_manager.get_block_ids("a")
        return {blocks[0]}

    def test_discards_the_step(self, sync: Driver) -> None:
        prefill(sync)
        schedule = sync.schedule()
        outputs, _ = sync.update(schedule, {"a": BLOCK}, invalid_block_ids=self.block_of(sync))
        assert outputs == {}
        assert notice(sync.schedule()).rollbacks == {"a": Rollback(2, 0)}

    def test_stays_charged_where_vllm_keeps_the_step_after_it(self, ahead: Driver) -> None:
        """Under async scheduling the step in flight is kept: to take it back would give budget twice."""
        prefill(ahead)
        second, third = ahead.schedule(), ahead.schedule()
        ahead.update(second, {"a": BLOCK[:1]}, invalid_block_ids=self.block_of(ahead))
        assert notice(ahead.schedule()).rollbacks == {}
        outputs, _ = ahead.update(third, {"a": BLOCK[:1]})
        assert outputs["a"].new_token_ids == BLOCK[:1]


@dataclass
class Record:
    """What a worker knows of one request's step.

    Attributes:
        step: Its number.
        before: What stood charged as it began.
        is_undone: Whether it was taken back; the worker itself does not look.
    """

    step: int
    before: int
    is_undone: bool = False


class Worker:
    """Counts each request's tokens, and takes back, as the verifier does with the ledger."""

    def __init__(self) -> None:
        self.charged: dict[str, int] = defaultdict(int)
        self.log: dict[str, list[Record]] = defaultdict(list)

    def follow(self, told: Notice) -> None:
        """Take back what was not kept, and forget what no rollback can be about."""
        for request_id, (after_step, kept_tokens) in told.rollbacks.items():
            since = after_step if kept_tokens is not None else after_step + 1
            records = [record for record in self.log[request_id] if record.step >= since]
            if records:
                self.charged[request_id] = records[0].before
                if records[0].step == after_step and kept_tokens:
                    self.charged[request_id] += kept_tokens
            for record in records:
                record.is_undone = True
        for records in self.log.values():
            records[:] = [record for record in records if record.step > told.committed_through]

    def run(self, request_id: str, step: int, num_tokens: int) -> None:
        """Charge a step."""
        self.log[request_id].append(Record(step, self.charged[request_id]))
        self.charged[request_id] += num_tokens

    def committed(self, request_id: str) -> int:
        """What stands charged for steps that the scheduler has processed."""
        in_flight = [record.before for record in self.log[request_id] if not record.is_undone]
        return min(in_flight, default=self.charged[request_id])


class Life:
    """Requests and sessions come, are reset, preempted and aborted, at random."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.driver, self.random, self.worker = driver, random.Random(seed), Worker()
        self.in_flight: deque[tuple[Any, dict[str, list[int]]]] = deque()
        self.emitted: dict[str, int] = defaultdict(int)
        self.num_requests = self.num_rollbacks = 0

    def begin(self) -> None:
        """Add a request or a session."""
        self.driver.add(f"{self.num_requests}", self.random.randint(3, 30), self.random.random() < 0.6)
        self.num_requests += 1

    def step(self) -> None:
        """Schedule a step; the worker runs it at once."""
        scheduler = self.driver.scheduler
        if not scheduler.has_requests():
            return
        running = [request.request_id for request in scheduler.running if not request.is_prefill_chunk]
        if not scheduler.scheduler_config.async_scheduling:
            self.driver.draft(*running)
        schedule = self.driver.schedule()
        told = notice(schedule)
        self.worker.follow(told)
        self.num_rollbacks += len(told.rollbacks)
        for request_id in scheduler.requests:
            assert self.worker.committed(request_id) == self.emitted[request_id], request_id
        sampled = {}
        for request_id in schedule.num_scheduled_tokens:
            drafts = schedule.scheduled_spec_decode_tokens.get(request_id, [])
            number = 1 + self.random.randint(0, len(drafts))
            tokens = [EOS if self.random.random() < 0.08 else 50 for _ in range(number)]
            sampled[request_id] = tokens
            self.worker.run(request_id, told.step, number)
        self.in_flight.append((schedule, sampled))

    def end_step(self) -> None:
        """Process the oldest step's output."""
        if self.in_flight:
            outputs, _ = self.driver.update(*self.in_flight.popleft())
            for request_id, item in outputs.items():
                self.emitted[request_id] += len(item.new_token_ids)

    def disturb(self) -> None:
        """Do something that may cost tokens."""
        scheduler, chance = self.driver.scheduler, self.random.random()
        if chance < 0.25:
            # A session that waits for its next chunk keeps its blocks, which vLLM minds after preempting.
            with contextlib.suppress(RuntimeError):
                scheduler.reset_prefix_cache(reset_running_requests=True)
        elif chance < 0.4 and scheduler.running:
            scheduler._preempt_request(scheduler.running.pop(), 0.0, self.random.random() < 0.3)
        elif chance < 0.5 and scheduler.requests:
            scheduler.finish_requests(
                self.random.choice(sorted(scheduler.requests)), RequestStatus.FINISHED_ABORTED
            )
        elif chance < 0.8:
            sessions = [r.request_id for r in scheduler.requests.values() if r.resumable]
            if sessions:
                # Longer than a block: vLLM 0.32 takes the tokens that a stop cut off for computed ones.
                limit = self.random.randint(1, 20)
                self.driver.add(self.random.choice(sorted(sessions)), limit, True, prompt=10)
        elif len(scheduler.requests) < 6:
            self.begin()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_what_stands_charged_is_what_went_out(
    tiny_llama_dir: Path, tiny_llama_drafter_dir: Path, is_async: bool, seed: int
) -> None:
    life = Life(Driver(tiny_llama_dir, tiny_llama_drafter_dir, is_async), seed)
    depth = 2 if is_async else 1
    life.begin()
    for _ in range(250):
        if len(life.in_flight) < depth:
            life.step()
        if len(life.in_flight) == depth or life.random.random() < 0.2:
            life.end_step()
        if life.random.random() < 0.3:
            life.disturb()
    assert life.num_rollbacks > 0


def test_of_two_pending_the_earlier_says_it_all() -> None:
    kept = KeptTokens()
    for rollbacks, expected in [
        ([Rollback(4, 2), Rollback(4, None)], Rollback(4, 2)),
        ([Rollback(4, None), Rollback(4, 0)], Rollback(4, 0)),
        ([Rollback(3, None), Rollback(5, 1)], Rollback(3, None)),
    ]:
        for rollback in rollbacks:
            kept._roll_back("a", rollback)
        schedule = SimpleNamespace()
        kept.announce(schedule)
        assert getattr(schedule, ATTRIBUTE).rollbacks == {"a": expected}
