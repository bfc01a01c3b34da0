"""Reports of requests with stop strings: sent in parts, whole in the front end at every step."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import numpy as np
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.property.step_blocks import make_blocks
from vllm_asd.config import RequestLimits
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.upstream import early_report, wire
from vllm_asd.upstream.early_report import EarlyReports
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
        self.reports = OpenReports(detailed)
        self.reports.open("a", RequestLimits(1e6, 1.0, 2, answer=RequestLimits(1e6, 1.0, 2)))
        self.metrics: Any = RequestSpecDecodeMetrics.new(NUM_DRAFT)
        self.early = EarlyReports(self.reports)
        self.early.follow(SimpleNamespace(request_id="a", spec_decode_metrics=self.metrics))
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        blocks = make_blocks(["a"], [{1: 0.5}], NUM_DRAFT, 3, spent=self.steps / 2, thinking=1)
        self.metrics.observe(NUM_DRAFT, 3, self.detailed)
        kept = {"a": [7, 8, 9, 9]}
        at = np.array([4 * self.steps])
        self.reports.observe(blocks, at, kept, self.early.cuttable(kept))

    def take_part(self, finish_reason: FinishReason | None = None) -> Any:
        output = EngineCoreOutput(request_id="a", new_token_ids=[], spec_decode_metrics=self.metrics)
        output.finish_reason = finish_reason
        self.early.send([output])
        self.reports.settle()
        return output

    def send(self, finish_reason: FinishReason | None = None) -> bytes:
        outputs = EngineCoreOutputs(outputs=[self.take_part(finish_reason)])
        return b"".join(MsgpackEncoder().encode(outputs))

    def whole(self) -> dict[str, Any]:
        """The report as the engine core knows it."""
        self.metrics.asd = self.reports.report("a")
        whole: dict[str, Any] = self.metrics.to_dict()
        self.metrics.asd = None
        return whole


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
        assert front_end.receive(core.send()) == core.whole()
    # The request's end comes from the engine core after all.
    core.step()
    core.early.end("a")
    assert front_end.receive(core.send(FinishReason.LENGTH)) == core.whole()
    assert "a" not in core.early


def test_a_session_goes_on_after_the_end_of_a_chunk_and_leaves_its_report_alone() -> None:
    """A streaming-input session hands its report over at the end of each chunk."""
    core, front_end = EngineCore(), FrontEnd()
    core.step()
    assert front_end.receive(core.send()) == core.whole()
    core.step()
    at_the_end = copy.deepcopy(core.whole())
    front_end.receive(core.send(FinishReason.STOP))
    handed_over = front_end.state.spec_decode_metrics
    for _ in range(3):
        core.step()
        assert front_end.receive(core.send()) == core.whole()
    assert handed_over.to_dict() == at_the_end


def test_a_step_without_news() -> None:
    core, front_end = EngineCore(), FrontEnd()
    core.step()
    for _ in range(3):
        assert front_end.receive(core.send()) == core.whole()


def test_an_error_ends_a_request_without_a_report() -> None:
    core = EngineCore()
    output = EngineCoreOutput(request_id="a", new_token_ids=[], finish_reason=FinishReason.ERROR)
    core.early.end("a")
    core.early.send([output])
    assert output.spec_decode_metrics is None


def test_what_a_step_sends_does_not_grow_with_the_answer() -> None:
    core = EngineCore()
    sizes = []
    for _ in range(300):
        core.step()
        sizes.append(len(core.send()))
    # Larger totals take a few bytes more.
    assert sizes[-1] - sizes[0] < 50
    assert len(str(core.whole())) > 30 * sizes[-1]


def test_a_part_does_not_change_while_another_thread_encodes_it() -> None:
    core = EngineCore()
    core.step()
    part = core.take_part().spec_decode_metrics
    before = copy.deepcopy(part)
    assert part.asd["phases"]["reasoning"]["exceptions"] == 1
    core.step()
    assert vars(part) == vars(before)
    assert len(part.per_step_accepted) == len(part.asd["exception_trace"]) == 1


def test_a_sampled_request_has_vllms_own_figures() -> None:
    """A request without a report of ours gets vLLM's early, too: a stop string may end it."""
    core, front_end = EngineCore(), FrontEnd()
    core.reports = OpenReports(True)
    core.early = EarlyReports(core.reports)
    core.early.follow(SimpleNamespace(request_id="a", spec_decode_metrics=core.metrics))
    for _ in range(2):
        core.step()
        assert front_end.receive(core.send()) == core.metrics.to_dict()
