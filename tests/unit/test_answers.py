"""Prompts sent under several arms: each answer is kept as it comes, whatever becomes of the others."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

pytest.importorskip("openai")

import openai

from vllm_asd.tools.answers import Prompt, collect, read_answers

ASD = {"verified_blocks": 0, "exceptions": 0, "regret_spent": 0.0, "exhausted_at_token": None}


def response() -> dict[str, Any]:
    """Of one token, as far as `collect` reads it."""
    speculation = {"num_spec_steps": 1, "num_accepted_draft_tokens": 0, "asd": ASD}
    choice = {"token_ids": [1], "finish_reason": "stop"}
    return {"choices": [choice], "metrics": {"speculative_decoding": speculation}}


class FailingClient:
    """Answers only once the prompt "fails" has failed, and a while after."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.chat = SimpleNamespace(completions=self)
        self._failed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def create(self, messages: list[dict[str, str]], **_: Any) -> Any:
        text = messages[0]["content"]
        self.asked.append(text)
        if text == "fails":
            self._failed.set()
            raise openai.OpenAIError("out of memory")
        await self._failed.wait()
        for _turn in range(20):
            await asyncio.sleep(0)
        return SimpleNamespace(model_dump=response)


def test_answers_under_way_when_a_request_fails_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FailingClient()
    monkeypatch.setattr(openai, "AsyncOpenAI", lambda **_: client)
    prompts = [Prompt("t", str(n), text) for n, text in enumerate(("a", "b", "fails", "c", "d"))]
    path = tmp_path / "answers.jsonl"
    with pytest.raises(openai.OpenAIError, match="out of memory"):
        asyncio.run(collect("http://server", "m", prompts, {"strict": {}}, path, 8, 3))
    assert client.asked == ["a", "b", "fails"]
    assert [answer.id for answer in read_answers(path)] == ["0", "1"]
