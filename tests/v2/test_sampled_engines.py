"""`asd_sampling: "gumbel"` on Model Runner V2, in real engines.

Where no exception passes, a request with a seed emits token for token what vLLM emits without speculation:
the noise of a position is the one vLLM's sampler draws there. In float32, so that no block's shape decides.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import speculation
from tests.v2.environment import run_module, triton_environment

pytest.importorskip("triton")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 16
NEVER = 1e-12
PROMPTS = [[1, 5 + i, 7 * i + 9, 30, 31, 5 + i, 7 * i + 9] for i in range(5)]
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"temperature": 1.0},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.9},
    {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 0.0},
]


def batch() -> list[dict[str, Any]]:
    """Sampled each in its own way, and a greedy one."""
    return [
        {"prompt": prompt, "params": {"max_tokens": TOKENS, "ignore_eos": True, "seed": seed} | parameters}
        for seed, (prompt, parameters) in enumerate(zip(PROMPTS, SAMPLING, strict=True))
    ]


def run(folder: Path, target: Path, configs: list[dict[str, Any] | None]) -> list[list[dict[str, Any]]]:
    """One V2 process, an engine per speculative configuration; the completions of each."""
    common = {"model": str(target), "dtype": "float32", "max_model_len": 256, "max_num_seqs": 8}
    # vLLM takes the level of reports only beside speculation.
    engines = [
        common | ({"speculative_config": config} if config else {"per_request_spec_decode_metrics": "none"})
        for config in configs
    ]
    job = [{"engine": engine, "batches": [batch()]} for engine in engines]
    job_path, result_path = folder / "job.json", folder / "result.json"
    job_path.write_text(json.dumps(job))
    arguments = ["tests.e2e.run_engines", str(job_path), str(result_path)]
    log = run_module(arguments, triton_environment(), folder / "engines.log")
    assert "gpu/model_runner.py" in log or "[model_runner.py" in log
    results = json.loads(result_path.read_text())
    return [[request["completions"][0] for request in engine["batches"][0]] for engine in results]


@pytest.mark.e2e
def test_the_sample_is_the_one_without_speculation(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """And with exceptions allowed, each request stays within its budget and says what it kept."""
    asd = {"sampling": "gumbel", "block_cap": 4}
    plain, exact, relaxed = run(
        tmp_path,
        tiny_llama_dir,
        [
            None,
            speculation("draft_model", 3, tiny_llama_drafter_dir, gate=NEVER, **asd),
            speculation("draft_model", 3, tiny_llama_drafter_dir, gate=0.5, budget=2.0, **asd),
        ],
    )
    assert [answer["token_ids"] for answer in exact] == [answer["token_ids"] for answer in plain]
    accepted = sum(answer["metrics"]["asd"]["accepted_tokens"] for answer in exact[:-1])
    assert accepted > len(PROMPTS)
    exceptions = 0
    for answer in relaxed[:-1]:
        report = answer["metrics"]["asd"]
        assert report["sampled"]
        assert 0.0 <= report["regret_spent"] <= report["budget"] == 2.0
        for entry in report["exception_trace"]:
            assert answer["token_ids"][entry["position"]] == entry["token_id"] != entry["target_token_id"]
        exceptions += report["exceptions"]
    assert exceptions > 2


def test_the_noise_compiles_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    """The interpreter takes what the compiler refuses."""
    environment = triton_environment(plugin=False) | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    del environment["TRITON_INTERPRET"]
    assert "compiled 12 kernels" in run_module(["tests.v2.compile_noise"], environment, tmp_path / "log")
