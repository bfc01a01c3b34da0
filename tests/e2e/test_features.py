"""Relaxed requests beside everything else vLLM does to logits before its argmax: one engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import PROMPTS, greedy, run, speculation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EOS = 2  # <|im_end|> of SmolLM2
BUDGET = 20.0
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NATURAL = {"temperature": 0.0, "max_tokens": 48}


def _chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


CASES: dict[str, dict[str, Any]] = {
    "plain": {"prompt": PROMPTS[3], "params": greedy(48, logprobs=20)},
    "plain2": {"prompt": PROMPTS[9], "params": greedy(48, logprobs=20)},
    "json": {
        "prompt": _chat("Describe a person as JSON with name and age."),
        "params": {**NATURAL, "structured_outputs": {"json": SCHEMA}},
    },
    "choice": {
        "prompt": _chat("Is the sky blue? Answer yes or no."),
        "params": {**NATURAL, "structured_outputs": {"choice": ["yes", "no"]}},
    },
    "regex": {
        "prompt": _chat("Give me a date."),
        "params": {**NATURAL, "structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}},
    },
    "bad_words": {"prompt": PROMPTS[3], "params": greedy(48, bad_words=["the", "town", "a"])},
    "allowed": {"prompt": PROMPTS[5], "params": greedy(32, allowed_token_ids=list(range(300, 900)))},
    "penalties": {
        "prompt": PROMPTS[2],
        "params": greedy(48, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5),
    },
    "min_tokens": {"prompt": _chat("Say hi."), "params": {**NATURAL, "min_tokens": 40}},
    "stop_token": {"prompt": PROMPTS[9], "params": {**NATURAL, "stop_token_ids": [28, 30]}},
    "natural": {"prompt": _chat("What is the capital of France?"), "params": NATURAL},
    "strict": {"prompt": PROMPTS[3], "params": greedy(48, extra_args={"asd_budget": 0})},
    "shadow": {"prompt": PROMPTS[3], "params": greedy(48, extra_args={"asd_mode": "shadow"})},
    "small": {"prompt": PROMPTS[3], "params": greedy(48, extra_args={"asd_budget": 0.3})},
    "several": {
        "prompt": PROMPTS[0],
        "params": {"temperature": 0.9, "seed": 3, "n": 3, "max_tokens": 16, "ignore_eos": True},
    },
}


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path, smollm2_drafter_dir: Path
) -> dict[str, dict[str, Any]]:
    """All cases in one batch of one engine."""
    config = speculation("draft_model", 5, smollm2_drafter_dir, budget=BUDGET, gate=1.0, block_cap=3)
    job = [
        {
            "engine": {"model": str(smollm2_dir), "dtype": "bfloat16", "speculative_config": config},
            "batches": [list(CASES.values())],
        }
    ]
    (result,) = run(tmp_path_factory.mktemp("features"), job)
    assert result["ledger_entries"] == 0
    return dict(zip(CASES, result["batches"][0], strict=True))


def _answer(answers: dict[str, dict[str, Any]], case: str) -> dict[str, Any]:
    answer: dict[str, Any] = answers[case]["completions"][0]
    return answer


def _report(answers: dict[str, dict[str, Any]], case: str) -> dict[str, Any]:
    report: dict[str, Any] = _answer(answers, case)["metrics"]["asd"]
    return report


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("several", "strict")])
def test_every_report_adds_up(answers: dict[str, dict[str, Any]], case: str) -> None:
    """Within the budget; the trace is the sum; each kept token stands where the trace says."""
    answer, report = _answer(answers, case), _report(answers, case)
    assert 0.0 <= report["regret_spent"] <= report["budget"]
    trace = report["exception_trace"]
    assert len(trace) == report["exceptions"]
    assert sum(entry["regret"] for entry in trace) == pytest.approx(report["regret"])
    assert report["strict_accepted_tokens"] <= report["accepted_tokens"]
    for entry in trace:
        assert entry["regret"] <= 1.0 * 5
        assert EOS not in (entry["token_id"], entry["target_token_id"]) or case not in (
            "natural",
            "min_tokens",
        )
        if report["mode"] == "enforce":
            assert answer["token_ids"][entry["position"]] == entry["token_id"] != entry["target_token_id"]


def test_something_was_relaxed(answers: dict[str, dict[str, Any]]) -> None:
    """Otherwise the other tests would pass for a plugin that does nothing."""
    relaxed = [case for case in CASES if case != "several" and _report(answers, case)["exceptions"]]
    assert {"plain", "plain2", "penalties", "shadow"} <= set(relaxed)


@pytest.mark.parametrize("case", ["plain", "plain2"])
def test_regret_is_the_gap_in_logprobs(answers: dict[str, dict[str, Any]], case: str) -> None:
    """What vLLM reports for both tokens differs by the regret, and the kept token's logprob is its own."""
    answer = _answer(answers, case)
    for entry in _report(answers, case)["exception_trace"]:
        reported = answer["logprobs"][entry["position"]]
        gap = reported[str(entry["target_token_id"])] - reported[str(entry["token_id"])]
        assert gap == pytest.approx(entry["regret"], abs=1e-4)


def test_grammars_hold(answers: dict[str, dict[str, Any]]) -> None:
    """A token that the grammar forbids has no finite regret."""
    person = _answer(answers, "json")
    if person["finish_reason"] == "stop":
        assert set(json.loads(person["text"])) == {"name", "age"}
    assert person["text"].lstrip().startswith("{")
    assert _answer(answers, "choice")["text"] in ("yes", "no")
    year, month, day = _answer(answers, "regex")["text"].split("-")
    assert (len(year), len(month), len(day)) == (4, 2, 2)


def test_masks_hold(answers: dict[str, dict[str, Any]]) -> None:
    """Bad words never appear, and only allowed tokens do."""
    words = _answer(answers, "bad_words")["text"].split()
    assert not {"the", "town", "a"} & set(words)
    assert all(300 <= token < 900 for token in _answer(answers, "allowed")["token_ids"])


def test_stopping(answers: dict[str, dict[str, Any]]) -> None:
    """No early end under min_tokens, no stop token inside an answer, protected ones in no exception."""
    assert len(_answer(answers, "min_tokens")["token_ids"]) >= 40
    assert EOS not in _answer(answers, "min_tokens")["token_ids"][:39]
    for case, stops in (("stop_token", {28, 30, EOS}), ("natural", {EOS})):
        assert not stops & set(_answer(answers, case)["token_ids"][:-1])
        for entry in _report(answers, case)["exception_trace"]:
            assert not stops & {entry["token_id"], entry["target_token_id"]}


def test_shadow_emits_what_strict_does(answers: dict[str, dict[str, Any]]) -> None:
    """Same tokens, same rounds, and yet a count of what would have been relaxed."""
    strict, shadow = _answer(answers, "strict"), _answer(answers, "shadow")
    assert strict["token_ids"] == shadow["token_ids"]
    assert strict["metrics"]["num_spec_steps"] == shadow["metrics"]["num_spec_steps"]
    assert _report(answers, "strict")["exceptions"] == 0 < _report(answers, "shadow")["exceptions"]


def test_fewer_rounds(answers: dict[str, dict[str, Any]]) -> None:
    """The same prompt takes fewer verification rounds relaxed than strict; a small budget lies between."""
    rounds = {c: _answer(answers, c)["metrics"]["num_spec_steps"] for c in ("strict", "small", "plain")}
    assert rounds["plain"] < rounds["strict"]
    assert _report(answers, "small")["regret_spent"] <= 0.3


def test_several_samples(answers: dict[str, dict[str, Any]]) -> None:
    """With n > 1 vLLM samples, so it stays vLLM's: three sequences, none of them with a ledger."""
    completions = answers["several"]["completions"]
    assert len(completions) == 3
    assert all("asd" not in (completion["metrics"] or {}) for completion in completions)
