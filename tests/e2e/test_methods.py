"""Every drafting method that V1 serves on a CPU, on the tiny Llama: identity at budget 0, bounds above it.

n-gram and a trained EAGLE-3 head are held to the same on SmolLM2 by test_identity.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.e2e.engines import run, speculation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROMPTS = [[5 + (7 * row + 3 * i) % 300 for i in range(12)] * 2 for row in range(8)]
LAX = {"budget": 30.0, "gate": 3.0, "block_cap": 4}


def medusa_head(target: Path, folder: Path, heads: int) -> Path:
    """Medusa heads that pass the hidden state through to the target's own output layer."""
    weights = load_file(target / "model.safetensors")
    hidden, vocab = 64, 512
    generator = torch.Generator().manual_seed(0)
    tensors = {"lm_head.weight": weights["lm_head.weight"]}
    for head in range(heads):
        tensors[f"blocks.{head}.layers.0.weight"] = torch.randn(hidden, hidden, generator=generator) * 0.05
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": hidden,
        "vocab_size": vocab,
        "medusa_num_heads": heads,
        "medusa_num_layers": 1,
        "original_lm_head": True,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _batch(extra_args: dict[str, Any] | None) -> list[dict[str, Any]]:
    more = {} if extra_args is None else {"extra_args": extra_args}
    params = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "logprobs": 1, **more}
    return [{"prompt": prompt, "params": params} for prompt in PROMPTS]


@pytest.mark.parametrize("method", ["draft_model", "medusa", "suffix"])
def test_method(method: str, tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> None:
    """Budget 0 equals vLLM without the plugin; above it the drafts are relaxed within the budget."""
    if method == "suffix" and importlib.util.find_spec("arctic_inference") is None:
        pytest.skip("needs arctic-inference")
    drafter = {"draft_model": tiny_llama_drafter_dir, "suffix": None}.get(method, tmp_path / "medusa")
    runs = tmp_path / "runs"
    runs.mkdir()
    if method == "medusa":
        medusa_head(tiny_llama_dir, tmp_path / "medusa", 3)

    def engine(plugin: bool, batches: list[Any], **asd: Any) -> Any:
        config = speculation(method, 3, drafter, **asd)
        job = {"engine": {"model": str(tiny_llama_dir), "speculative_config": config}, "batches": batches}
        return run(runs, [job], plugin=plugin)[0]

    (without,) = engine(False, [_batch(None)])["batches"]
    result = engine(True, [_batch({"asd_budget": 0}), _batch({})], **LAX)
    assert result["ledger_entries"] == 0
    strict, relaxed = ([request["completions"][0] for request in batch] for batch in result["batches"])
    for ours, theirs in zip(strict, without, strict=True):
        assert ours["token_ids"] == theirs["completions"][0]["token_ids"]
        assert ours["logprobs"] == theirs["completions"][0]["logprobs"]
    for answer in relaxed:
        report = answer["metrics"]["asd"]
        assert report["regret_spent"] <= LAX["budget"]
        for entry in report["exception_trace"]:
            assert answer["token_ids"][entry["position"]] == entry["token_id"]
            assert entry["regret"] <= LAX["gate"] * 3
    drafted = sum(answer["metrics"]["num_draft_tokens"] for answer in relaxed)
    exceptions = sum(answer["metrics"]["asd"]["exceptions"] for answer in relaxed)
    assert drafted > 50
    assert exceptions > 0
