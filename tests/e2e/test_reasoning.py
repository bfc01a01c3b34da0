"""`asd_scope: "reasoning"` in a real engine: exceptions only between the model's think tokens."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import greedy, run, speculation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

THINK, END = 3, 4  # of the tiny Llama's tokenizer
WORDS = [[5 + (11 * row + 3 * i) % 400 for i in range(10)] for row in range(6)]


def test_scope(tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> None:
    """An open think token in the prompt allows exceptions; a closed one, or none, forbids them."""
    config = speculation(
        "draft_model", 4, tiny_llama_drafter_dir, budget=50.0, gate=2.0, block_cap=4, scope="reasoning"
    )
    prompts = {
        "open": [[THINK, *words] for words in WORDS],
        "closed": [[THINK, *words, END] for words in WORDS],
        "none": WORDS,
    }
    batch = [{"prompt": p, "params": greedy(60)} for given in prompts.values() for p in given]
    engine = {
        "model": str(tiny_llama_dir),
        "speculative_config": config,
        "reasoning_parser": "deepseek_r1",
    }
    (result,) = run(tmp_path, [{"engine": engine, "batches": [batch]}])
    answers = [request["completions"][0] for request in result["batches"][0]]
    relaxed = {name: 0 for name in prompts}
    for name, answer in zip((n for n in prompts for _ in WORDS), answers, strict=True):
        relaxed[name] += _check(answer, thinking=name == "open")
    assert relaxed["open"] > 10
    assert relaxed["open"] > 5 * (relaxed["closed"] + relaxed["none"])


def _check(answer: dict[str, Any], thinking: bool) -> int:
    """Follow the phase through the answer; every exception must lie inside the reasoning."""
    exceptions = {entry["position"]: entry for entry in answer["metrics"]["asd"]["exception_trace"]}
    for position, token in enumerate(answer["token_ids"]):
        if position in exceptions:
            assert thinking, (position, exceptions[position])
            assert not {THINK, END} & {token, exceptions[position]["target_token_id"]}
        if token in (THINK, END):
            thinking = token == THINK
    return len(exceptions)
