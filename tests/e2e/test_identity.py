"""Budget 0 is vLLM, token for token: plugin installed and asked for, against plugin not loaded.

Same K, same batches, so that bf16 has no reason to differ; ids and log-probabilities must be equal exactly.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import PROMPTS, greedy, run, speculation

pytestmark = pytest.mark.e2e

# Every K on demand (`VLLM_ASD_FULL=1`, about ten minutes more); CI runs the one in the middle.
DRAFT_LENGTHS = (1, 3, 7) if os.environ.get("VLLM_ASD_FULL") else (3,)
TOKENS = 24


def _batches(extra_args: dict[str, Any] | None) -> list[list[dict[str, Any]]]:
    """Batch of 1 and of 32 mixed prompts, at temperature 0 and seeded at 0.8."""
    prompts = (PROMPTS * 2)[:32]
    more: dict[str, Any] = {"logprobs": 2} | ({} if extra_args is None else {"extra_args": extra_args})
    cold = greedy(TOKENS, **more)

    def warm(seed: int) -> dict[str, Any]:
        return {**cold, "temperature": 0.8, "seed": seed}

    return [
        [{"prompt": prompts[0], "params": cold}],
        [{"prompt": prompts[1], "params": warm(1)}],
        [{"prompt": prompt, "params": cold} for prompt in prompts],
        [{"prompt": prompt, "params": warm(seed)} for seed, prompt in enumerate(prompts)],
        # Greedy and sampled rows in one batch.
        [{"prompt": p, "params": warm(i) if i % 2 else cold} for i, p in enumerate(prompts)],
    ]


def _assert_identical(with_asd: list[Any], without: list[Any]) -> None:
    for ours, theirs in zip(with_asd, without, strict=True):
        assert ours["ledger_entries"] == 0
        assert theirs["ledger_entries"] is None
        for our_batch, their_batch in zip(ours["batches"], theirs["batches"], strict=True):
            for our, their in zip(our_batch, their_batch, strict=True):
                our_text, their_text = our["completions"][0], their["completions"][0]
                assert our_text["token_ids"] == their_text["token_ids"]
                assert our_text["logprobs"] == their_text["logprobs"]
                our_metrics = dict(our_text["metrics"])
                our_metrics.pop("asd", None)
                assert our_metrics == their_text["metrics"]


def _check(tmp_path: Path, model: Path, method: str, drafter: Path | None) -> None:
    def engines(plugin: bool, extra_args: dict[str, Any] | None, **asd: Any) -> list[Any]:
        # A process per K: vLLM 0.32 cannot start a second CPU engine in a process that has loaded numba.
        return [
            engine
            for k in DRAFT_LENGTHS
            for engine in run(
                tmp_path,
                [
                    {
                        "engine": {
                            "model": str(model),
                            "dtype": "bfloat16",
                            "speculative_config": speculation(method, k, drafter, **asd),
                        },
                        "batches": _batches(extra_args),
                    }
                ],
                plugin=plugin,
            )
        ]

    without = engines(False, None)
    by_request = engines(True, {"asd_budget": 0}, budget=8.0, gate=1.0)
    _assert_identical(by_request, without)
    drafted = sum(
        completion["metrics"]["num_draft_tokens"]
        for engine in without
        for batch in engine["batches"]
        for request in batch
        for completion in request["completions"]
    )
    assert drafted > 200, "the drafter proposed next to nothing: the comparison shows nothing"


@pytest.mark.timeout(1200)
def test_ngram(tmp_path: Path, smollm2_dir: Path) -> None:
    """Budget 0 per request on an ASD server, n-gram drafts."""
    _check(tmp_path, smollm2_dir, "ngram", None)


@pytest.mark.timeout(1200)
def test_eagle3(tmp_path: Path, smollm2_dir: Path, shared_dir: Path) -> None:
    """Budget 0 per request on an ASD server, a real EAGLE-3 head."""
    _check(tmp_path, smollm2_dir, "eagle3", shared_dir / "models" / "smollm2-135m-eagle3")
