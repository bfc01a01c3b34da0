"""vLLM's real output processor finds a stop string inside a block: the report ends where the answer does."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import numpy as np
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.property.step_blocks import make_blocks
from vllm_asd.config import RequestLimits
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.upstream import early_report, wire
from vllm_asd.upstream.early_report import EarlyReports
from vllm_asd.upstream.patching import APPLIED

NUM_DRAFT = 5
LIMITS = RequestLimits(8.0, 0.25, 2)
# Each block: five tokens of a draft and the target's own; exceptions at its positions 1 and 3.
EXCEPTIONS = {1: 0.5, 3: 0.25}
FIRST, SECOND = [10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    before = [record in APPLIED for record in (wire.TO_DICT, early_report.PROCESS_OUTPUTS)]
    wire.install()
    early_report.install()
    yield
    if not all(before):
        APPLIED.undo_all()


@pytest.fixture(scope="module")
def tokenizer(tiny_llama_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_llama_dir)


class Engine:
    """The engine core's side of some requests, and vLLM's front end with its real output processor."""

    def __init__(self, tokenizer: Any, level: str = "detailed", limits: RequestLimits = LIMITS) -> None:
        self.reports = OpenReports(level == "detailed")
        self.early = EarlyReports(self.reports)
        self.processor: Any = OutputProcessor(tokenizer, log_stats=False)
        self.metrics: dict[str, Any] = {}
        self.position: dict[str, int] = {}
        self.detailed, self.limits = level == "detailed", limits

    def add(self, request_id: str, params: Any, parent: Any = None, index: int = 0) -> None:
        request = EngineCoreRequest(
            request_id, [1, 5], None, params, None, 0.0, None, None, None, external_req_id="external"
        )
        self.processor.add_request(request, "t5", parent, index)
        self.reports.open(request_id, self.limits)
        self.metrics[request_id] = RequestSpecDecodeMetrics.new(NUM_DRAFT)
        self.position[request_id] = 0
        metrics = self.metrics[request_id]
        self.early.follow(SimpleNamespace(request_id=request_id, spec_decode_metrics=metrics))

    def step(
        self, kept: dict[str, list[int]], finish_reason: FinishReason | None = None, **columns: Any
    ) -> Any:
        """Decide a block for each request, of which the engine core keeps these tokens."""
        for request_id in kept:
            self.metrics[request_id].observe(NUM_DRAFT, NUM_DRAFT, self.detailed)
        details = 2 if self.detailed else 0
        blocks = make_blocks(
            list(kept), [EXCEPTIONS] * len(kept), NUM_DRAFT, NUM_DRAFT, details=details, **columns
        )
        at = np.array([self.position[i] for i in kept])
        self.reports.observe(blocks, at, kept, self.early.cuttable(kept))
        items = [
            EngineCoreOutput(
                request_id=request_id,
                new_token_ids=list(tokens),
                finish_reason=finish_reason,
                spec_decode_metrics=None if finish_reason is None else self.metrics[request_id],
            )
            for request_id, tokens in kept.items()
        ]
        self.early.send(items)
        self.reports.settle()
        for request_id, tokens in kept.items():
            self.position[request_id] += len(tokens)
        message = b"".join(MsgpackEncoder().encode(EngineCoreOutputs(outputs=items)))
        received = MsgpackDecoder(EngineCoreOutputs).decode([message]).outputs
        return self.processor.process_outputs(received)


def params(kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY, **values: Any) -> Any:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 100, "output_kind": kind, **values})


def completion(result: Any) -> Any:
    (output,) = result.request_outputs
    (completion,) = output.outputs
    return completion


def tells(report: dict[str, Any]) -> tuple[Any, ...]:
    """Accepted, exceptions, reused, regret, spent."""
    names = ("accepted_tokens", "exceptions", "reused_tokens", "regret", "regret_spent")
    return tuple(report[name] for name in names)


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize(
    ("stop", "num_kept", "expected"),
    [
        ("t20", 1, (6, 2, 2, 0.75, 0.75)),
        ("t21", 2, (7, 3, 2, 1.25, 1.25)),
        ("t22", 3, (8, 3, 3, 1.25, 1.25)),
        ("t23", 4, (9, 4, 3, 1.5, 1.5)),
        ("t24", 5, (10, 4, 4, 1.5, 1.5)),
        ("t25", 6, (10, 4, 4, 1.5, 1.5)),
    ],
)
def test_the_report_is_about_the_tokens_that_the_client_gets(
    tokenizer: Any, included: bool, stop: str, num_kept: int, expected: tuple[Any, ...]
) -> None:
    engine = Engine(tokenizer)
    engine.add("a", params(stop=[stop], include_stop_str_in_output=included))
    engine.step({"a": FIRST}, spent=0.75)
    result = engine.step({"a": SECOND}, spent=1.5)
    assert result.reqs_to_abort == ["a"]
    answer = completion(result)
    assert answer.token_ids == [*FIRST, *SECOND[:num_kept]]
    report = answer.spec_decode_metrics.to_dict()["asd"]
    assert tells(report) == expected
    trace = report["exception_trace"]
    assert [entry["position"] for entry in trace] == [1, 3, 7, 9][: len(trace)]
    assert len(trace) == report["exceptions"]
    assert all(entry["position"] < len(answer.token_ids) for entry in trace)
    assert (report["verified_blocks"], report["blocks_by_stop"]["gate"]) == (2, 2)


def test_nothing_travels_to_the_client_that_is_not_documented(tokenizer: Any) -> None:
    for stop in ("t21", "never"):
        engine = Engine(tokenizer)
        engine.add("a", params(stop=[stop]))
        engine.step({"a": FIRST})
        answer = completion(engine.step({"a": SECOND}, FinishReason.LENGTH))
        report = answer.spec_decode_metrics.to_dict()["asd"]
        assert list(report) == list(engine.reports.report("a") or {})


@pytest.mark.parametrize("level", ["summary", "detailed"])
def test_in_a_stream_the_last_output_has_it(tokenizer: Any, level: str) -> None:
    engine = Engine(tokenizer, level)
    engine.add("a", params(RequestOutputKind.DELTA, stop=["t21"]))
    first = completion(engine.step({"a": FIRST}, spent=0.75))
    last = completion(engine.step({"a": SECOND}, spent=1.5))
    assert (first.token_ids, first.spec_decode_metrics) == (FIRST, None)
    assert last.token_ids == SECOND[:2]
    report = last.spec_decode_metrics.to_dict()["asd"]
    assert tells(report) == (7, 3, 2, 1.25, 1.25)
    assert ("exception_trace" in report) == (level == "detailed")


def test_each_of_several_sequences_ends_where_it_ends(tokenizer: Any) -> None:
    engine = Engine(tokenizer)
    together = params(stop=["t21"], n=2, temperature=1.0)
    parent = ParentRequest(
        EngineCoreRequest("p", [1, 5], None, together, None, 0.0, None, None, None, external_req_id="p")
    )
    for index in range(2):
        child, own = parent.get_child_info(index)
        engine.add(child, own, parent, index)
    first, second = engine.position
    engine.step({first: FIRST, second: SECOND[:1]}, spent=0.75)
    (output,) = engine.step({first: SECOND, second: FIRST}, FinishReason.LENGTH, spent=1.5).request_outputs
    by_index = {c.index: c.spec_decode_metrics.to_dict()["asd"] for c in output.outputs}
    assert tells(by_index[0]) == (7, 3, 2, 1.25, 1.25)
    assert tells(by_index[1]) == (6, 2, 2, 0.75, 1.5)
    assert [len(c.token_ids) for c in output.outputs] == [8, 7]


def test_a_stop_string_before_the_engine_cores_own_end(tokenizer: Any) -> None:
    """`max_tokens` cuts the block as well, further on."""
    engine = Engine(tokenizer)
    engine.add("a", params(stop=["t21"]))
    engine.step({"a": FIRST}, spent=0.75)
    engine.early.end("a")
    answer = completion(engine.step({"a": SECOND[:4]}, FinishReason.LENGTH, spent=1.5))
    assert (answer.finish_reason, answer.token_ids) == ("stop", [*FIRST, 20, 21])
    assert tells(answer.spec_decode_metrics.to_dict()["asd"]) == (7, 3, 2, 1.25, 1.25)


def test_max_tokens_inside_a_block_without_a_stop_string(tokenizer: Any) -> None:
    engine = Engine(tokenizer)
    engine.add("a", params(stop=["never"]))
    engine.step({"a": FIRST}, spent=0.75)
    answer = completion(engine.step({"a": SECOND[:2]}, FinishReason.LENGTH, spent=1.5))
    assert tells(answer.spec_decode_metrics.to_dict()["asd"]) == (7, 3, 2, 1.25, 1.25)


def test_under_shadow_the_whole_block_counts(tokenizer: Any) -> None:
    """What would have been kept was not emitted; a stop in the strict text does not cut it."""
    engine = Engine(tokenizer, limits=RequestLimits(8.0, 0.25, 2, shadow=True))
    engine.add("a", params(stop=["t20"]))
    answer = completion(engine.step({"a": SECOND[:2]}, shadow=1, spent=0.75))
    assert answer.token_ids == [20]
    assert tells(answer.spec_decode_metrics.to_dict()["asd"]) == (5, 2, 2, 0.75, 0.75)


def test_the_positions_of_exhaustion_and_guard_end_with_the_answer(tokenizer: Any) -> None:
    engine = Engine(tokenizer)
    engine.add("a", params(stop=["t21"]))
    # "budget" refused the token behind the five; the guard tripped with the block.
    answer = completion(engine.step({"a": SECOND}, stop=StopReason.BUDGET, guard=1))
    report = answer.spec_decode_metrics.to_dict()["asd"]
    assert (report["exhausted_at_token"], report["guarded_at_token"]) == (None, 2)


def test_a_session_goes_on_with_the_whole_block(tokenizer: Any) -> None:
    """A stop string ends a chunk in the front end alone: the engine core goes on, and so do its totals."""
    engine = Engine(tokenizer)
    engine.add("a", params(RequestOutputKind.DELTA, stop=["t21"]))
    engine.processor.request_states["a"].streaming_input = True
    answer = completion(engine.step({"a": SECOND}, spent=0.75))
    cut = answer.spec_decode_metrics.to_dict()["asd"]
    assert tells(cut) == (2, 1, 0, 0.5, 0.5)
    engine.step({"a": FIRST}, spent=1.5)
    known = engine.processor.request_states["a"].spec_decode_metrics
    assert known.asd == engine.reports.report("a")
    assert answer.spec_decode_metrics.to_dict()["asd"] == cut
    assert len(answer.spec_decode_metrics.per_step_accepted) == 1
