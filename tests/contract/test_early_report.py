"""Reports of requests with stop strings: sent in parts, whole in the front end at every step."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from vllm_asd.config import RequestLimits
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.request_report import RequestReport
from vllm_asd.telemetry.step_report import BlockException, BlockReport
from vllm_asd.upstream import early_report, wire
from vllm_asd.upstream.patching import APPLIED

pytestmark = pytest.mark.usefixtures("wired")
NUM_DRAFT = 4


@pytest.fixture
def wired() -> Any:
    was_applied = wire.TO_DICT in APPLIED
    wire.install()
    yield
    if not was_applied:
        APPLIED.undo_all()


class EngineCore:
    """One request: each step adds a block with one exception, as the scheduler does."""

    def __init__(self, detailed: bool = True) -> None:
        self.detailed = detailed
        limits = RequestLimits(1e6, 1.0, 2, answer=RequestLimits(1e6, 1.0, 2))
        self.report = RequestReport(limits, detailed)
        self.request = SimpleNamespace(
            request_id="a", spec_decode_metrics=RequestSpecDecodeMetrics.new(NUM_DRAFT)
        )
        self.request.spec_decode_metrics.asd = self.report.payload
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        block = BlockReport(
            *(NUM_DRAFT, 3, 1, 1, StopReason.GATE, 0.5, self.steps / 2, False),
            exceptions=(BlockException(1, 9, 0.5),),
            thinking=True,
        )
        self.request.spec_decode_metrics.observe(NUM_DRAFT, 3, self.detailed)
        self.report.observe(block, 4 * self.steps, [7, 8, 9, 9])

    def send(self, whole: bool) -> bytes:
        metrics = self.request.spec_decode_metrics if whole else early_report.take_part(self.request)
        output = EngineCoreOutput(request_id="a", new_token_ids=[], spec_decode_metrics=metrics)
        return b"".join(MsgpackEncoder().encode(EngineCoreOutputs(outputs=[output])))


class FrontEnd:
    """As much of vLLM's output processor as keeps a report."""

    def __init__(self) -> None:
        self.state: Any = SimpleNamespace(spec_decode_metrics=None)
        self.request_states = {"a": self.state}
        self._process = early_report._wrap_process_outputs(FrontEnd._keep)

    def _keep(self, outputs: list[Any]) -> None:
        self.state.spec_decode_metrics = outputs[0].spec_decode_metrics

    def receive(self, message: bytes) -> Any:
        self._process(self, MsgpackDecoder(EngineCoreOutputs).decode([message]).outputs)
        return self.state.spec_decode_metrics.to_dict()


@pytest.mark.parametrize("detailed", [True, False])
def test_the_report_is_whole_after_every_step(detailed: bool) -> None:
    core, front_end = EngineCore(detailed), FrontEnd()
    for _ in range(12):
        core.step()
        assert front_end.receive(core.send(whole=False)) == core.request.spec_decode_metrics.to_dict()
    # The request's end comes from the engine core after all.
    core.step()
    assert front_end.receive(core.send(whole=True)) == core.request.spec_decode_metrics.to_dict()


def test_a_step_without_news_and_one_that_goes_on_after_a_whole_report() -> None:
    """A streaming-input session gets a whole report at the end of each chunk, and goes on."""
    core, front_end = EngineCore(), FrontEnd()
    core.step()
    for whole in (False, False, True, False):
        assert front_end.receive(core.send(whole)) == core.request.spec_decode_metrics.to_dict()
    core.step()
    assert front_end.receive(core.send(whole=False)) == core.request.spec_decode_metrics.to_dict()


def test_what_a_step_sends_does_not_grow_with_the_answer() -> None:
    core = EngineCore()
    sizes = []
    for _ in range(300):
        core.step()
        sizes.append(len(core.send(whole=False)))
    # Larger totals take a few bytes more.
    assert sizes[-1] - sizes[0] < 40
    assert len(core.send(whole=True)) > 30 * sizes[-1]


def test_a_part_does_not_change_while_another_thread_encodes_it() -> None:
    core = EngineCore()
    core.step()
    part = early_report.take_part(core.request)
    before = copy.deepcopy((part.histogram, {**part.asd, "exception_trace": None}))
    assert part.asd["phases"]["reasoning"]["exceptions"] == 1
    core.step()
    assert (part.histogram, {**part.asd, "exception_trace": None}) == before
    assert len(part.per_step_accepted) == len(part.asd["exception_trace"]) == 1
