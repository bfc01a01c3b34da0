"""`/v1/responses`: the last output of the engine gives the metrics, whatever the conversation keeps of it."""

import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.entrypoints.generate.base.protocol import PerRequestMetrics
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

from vllm_asd.upstream import responses

SERVING = ("vllm/entrypoints/cli/serve.py", "vllm/entrypoints/openai/api_server.py")


def roots() -> list[Path]:
    """The installed vLLM, and the other version's source where there is one."""
    import vllm

    other = os.environ.get("VLLM_ASD_OTHER_VLLM")
    return [Path(vllm.__file__).parents[1], *([Path(other)] if other else [])]


@pytest.mark.parametrize("path", SERVING)
def test_an_api_server_is_known_by_a_module_that_it_imports_first(path: str) -> None:
    """Else the patches would silently not be there."""
    for root in roots():
        assert root.joinpath(*responses._API_SERVER.split(".")).with_suffix(".py").is_file()
        assert f"\nfrom {responses._API_SERVER} import" in (root / path).read_text()


def test_only_an_api_server_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[Any] = []
    patches = SimpleNamespace(apply=lambda patch, _wrap: applied.append(patch))
    monkeypatch.setattr(responses, "APPLIED", patches)
    monkeypatch.delitem(sys.modules, responses._API_SERVER, raising=False)
    responses.install()
    assert applied == []
    monkeypatch.setitem(sys.modules, responses._API_SERVER, ModuleType("entry"))
    responses.install()
    assert applied == [responses.GENERATE, responses.FULL_GENERATOR]


class Context:
    """A conversation that keeps nothing of an output."""

    def __init__(self, one_turn: bool = True) -> None:
        self.request_metrics_cover_all_generation_turns = one_turn
        self.appended: list[Any] = []

    def append_output(self, output: Any) -> None:
        self.appended.append(output)


def outputs() -> list[Any]:
    """As vLLM makes them: the last one has the metrics."""
    metrics = RequestSpecDecodeMetrics.new(3)
    metrics.observe(3, 2, detailed=True)
    return [SimpleNamespace(outputs=[SimpleNamespace(spec_decode_metrics=m)]) for m in (None, metrics)]


def answer(context: Context, engine_outputs: list[Any], response: Any) -> Any:
    """Run both patched functions as the route does."""

    async def generate(_self: Any, request_id: str, *, context: Any) -> Any:
        for output in engine_outputs:
            context.append_output(output)
            yield context

    async def full_generator(
        _self: Any, _request: Any, _params: Any, generator: Any, _context: Any, _model: Any
    ) -> Any:
        async for _ in generator:
            pass
        return response

    generator = responses._wrap_generate(generate)(None, "id", context=context)
    full = responses._wrap_full_generator(full_generator)
    return asyncio.run(full(None, None, None, generator, context, "model"))


@pytest.mark.parametrize("timings", [None, PerRequestMetrics(tokens_per_second=5.0)])
def test_the_metrics_stand_beside_vllms_timings(timings: PerRequestMetrics | None) -> None:
    context, engine_outputs = Context(), outputs()
    response = answer(context, engine_outputs, SimpleNamespace(metrics=timings))
    assert context.appended == engine_outputs
    assert response.metrics.speculative_decoding.per_step_accepted == [2]
    assert response.metrics.tokens_per_second == (timings and 5.0)


def test_an_answer_with_tool_calls_in_between_has_none() -> None:
    """The report would be the last generation's alone."""
    assert answer(Context(one_turn=False), outputs(), SimpleNamespace(metrics=None)).metrics is None


def test_without_metrics_the_field_stays_empty() -> None:
    assert answer(Context(), outputs()[:1], SimpleNamespace(metrics=None)).metrics is None


def test_an_error_is_passed_on() -> None:
    error = SimpleNamespace(error="gone")
    assert answer(Context(), outputs(), error) is error
    assert answer(Context(), [], error) is error
