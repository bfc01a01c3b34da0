"""`asd_sampling: "gumbel"` in a real engine: reports, budgets and seeds, beside greedy requests."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import greedy, run, speculation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

BUDGET = 3.0
PROMPTS = [[1, *(5 + (11 * row + 3 * i) % 400 for i in range(10))] for row in range(6)]


def _sampled(seed: int | None, **asd: Any) -> dict[str, Any]:
    extra_args = {f"asd_{key}": value for key, value in asd.items()}
    return greedy(40, extra_args=extra_args or None) | {"temperature": 0.8, "top_p": 0.95, "seed": seed}


BATCH = [
    *({"prompt": prompt, "params": _sampled(seed)} for seed, prompt in enumerate(PROMPTS)),
    {"prompt": PROMPTS[0], "params": _sampled(None)},
    {"prompt": PROMPTS[0], "params": _sampled(None, budget=0.5)},
    {"prompt": PROMPTS[1], "params": greedy(40)},
    {"prompt": PROMPTS[2], "params": _sampled(7, budget=0)},
    {"prompt": PROMPTS[2], "params": _sampled(7, sampling="off")},
]


@pytest.fixture(scope="module")
def batches(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> list[list[dict[str, Any]]]:
    """The batch, decoded twice by one engine."""
    config = speculation(
        "draft_model", 4, tiny_llama_drafter_dir, budget=BUDGET, gate=0.5, block_cap=4, sampling="gumbel"
    )
    engine = {
        "model": str(tiny_llama_dir),
        "speculative_config": config,
        "enable_prefix_caching": False,
    }
    (result,) = run(tmp_path_factory.mktemp("sampling"), [{"engine": engine, "batches": [BATCH, BATCH]}])
    # The request that `run_engines` sends last, so that the ends of the others are told, is a sampled one.
    assert result["ledger_entries"] == 1
    return [[request["completions"][0] for request in batch] for batch in result["batches"]]


def test_reports(batches: list[list[dict[str, Any]]]) -> None:
    """Sampled requests have one, within their budget; each kept token stands where its trace says."""
    exceptions = 0
    for answer in batches[0][: len(PROMPTS) + 2]:
        report = answer["metrics"]["asd"]
        assert report["sampled"]
        assert report["mode"] == "enforce"
        assert 0.0 <= report["regret_spent"] <= report["budget"] <= BUDGET
        assert report["verified_blocks"] > 0
        assert len(report["exception_trace"]) == report["exceptions"]
        for entry in report["exception_trace"]:
            assert answer["token_ids"][entry["position"]] == entry["token_id"] != entry["target_token_id"]
            assert entry["target_logprob"] is None
        exceptions += report["exceptions"]
    assert exceptions > 5
    assert batches[0][len(PROMPTS) + 1]["metrics"]["asd"]["budget"] == 0.5
    assert not batches[0][len(PROMPTS) + 2]["metrics"]["asd"]["sampled"]


def test_a_seed_repeats(batches: list[list[dict[str, Any]]]) -> None:
    """The same batch gives the same tokens and the same account, except where nobody gave a seed."""
    first, again = batches
    for seed in range(len(PROMPTS)):
        assert first[seed]["token_ids"] == again[seed]["token_ids"]
        assert first[seed]["metrics"]["asd"] == again[seed]["metrics"]["asd"]
    assert first[len(PROMPTS)]["token_ids"] != again[len(PROMPTS)]["token_ids"]


def test_two_ways_to_be_vllms(batches: list[list[dict[str, Any]]]) -> None:
    """Budget 0 and "off" both mean vLLM's own sampling; only the former reports on itself."""
    strict, off = batches[0][-2:]
    assert strict["token_ids"] == off["token_ids"]
    assert strict["metrics"]["asd"]["mode"] == "strict"
    assert "asd" not in off["metrics"]
