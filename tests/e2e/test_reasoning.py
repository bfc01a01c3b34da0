"""`asd_scope` in a real engine: exceptions only in the reasoning, or from an account of each phase."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

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


def test_phases(tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> None:
    """Each pool is spent where it belongs: one that is exhausted leaves the other's exceptions alone."""
    config = speculation(
        "draft_model", 4, tiny_llama_drafter_dir, budget=50.0, gate=2.0, block_cap=4, scope="phases"
    )
    little = {
        "reasoning": {"asd_budget": 0.5, "asd_answer_budget": 50.0},
        "answer": {"asd_answer_budget": 0.5},
    }
    batches = [
        [{"prompt": [THINK, *w], "params": greedy(240, extra_args=little["reasoning"])} for w in WORDS * 4],
        [{"prompt": w, "params": greedy(240, extra_args=little["answer"])} for w in WORDS * 4],
        [{"prompt": [THINK, *w], "params": greedy(60, extra_args={"asd_budget": 0})} for w in WORDS],
    ]
    # Other answers of the same prompt: the first words differ.
    for batch in batches[:2]:
        for row, request in enumerate(batch):
            request["prompt"] = [*request["prompt"], 5 + row]
    native = speculation("draft_model", 4, tiny_llama_drafter_dir)
    engine = {
        "model": str(_saying_markers(tiny_llama_dir, tmp_path / "model")),
        "reasoning_parser": "deepseek_r1",
        "dtype": "float32",
    }
    (result,) = run(tmp_path, [{"engine": engine | {"speculative_config": config}, "batches": batches}])
    # In a process of its own: vLLM 0.32 cannot start a second engine on a CPU once numba is loaded.
    job = {"engine": engine | {"speculative_config": native}, "batches": batches[2:]}
    (plain,) = run(tmp_path, [job], plugin=False)
    for batch, exhausted, other in (
        (result["batches"][0], "reasoning", "answer"),
        (result["batches"][1], "answer", "reasoning"),
    ):
        bought_by_other = 0
        for request in batch:
            report = request["completions"][0]["metrics"]["asd"]
            phases = report["phases"]
            assert phases[exhausted]["budget"] == 0.5
            assert phases[other]["budget"] == 50.0
            assert all(phase["regret_spent"] <= phase["budget"] for phase in phases.values())
            assert report["regret_spent"] == sum(phase["regret_spent"] for phase in phases.values())
            assert report["exceptions"] == sum(phase["exceptions"] for phase in phases.values())
            if phases[exhausted]["exhausted_at_token"] is not None:
                bought_by_other += _after(report, phases[exhausted]["exhausted_at_token"])
        assert bought_by_other > 10, (exhausted, bought_by_other)
    strict = result["batches"][2]
    assert all(request["completions"][0]["metrics"]["asd"]["mode"] == "strict" for request in strict)
    assert _tokens(strict) == _tokens(plain["batches"][0])


def _saying_markers(model: Path, folder: Path) -> Path:
    """Copy a random model so that it says a think marker now and then, whatever the CPU makes of its text."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][[THINK, END]] *= 1.4
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _after(report: dict[str, Any], position: int) -> int:
    """Exceptions behind a place that cost more than the little pool had left to give."""
    behind = [entry for entry in report["exception_trace"] if entry["position"] > position]
    return len(behind) if sum(entry["regret"] for entry in behind) > 0.5 else 0


def _tokens(batch: list[dict[str, Any]]) -> list[list[int]]:
    return [request["completions"][0]["token_ids"] for request in batch]


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
