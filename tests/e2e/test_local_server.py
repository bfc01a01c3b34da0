"""The local model behind a real `vllm serve`."""

import json
import urllib.request
from pathlib import Path

import pytest

from vllm_asd.tools.server import VllmServer

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


@pytest.mark.e2e
@pytest.mark.slow
def test_smollm2_answers_with_ngram_drafts(smollm2_dir: Path, tmp_path: Path) -> None:
    args = ["--enforce-eager", "--max-model-len", "2048", "--served-model-name", "smollm2"]
    args += ["--speculative-config", json.dumps(NGRAM)]
    question = {
        "model": "smollm2",
        "temperature": 0,
        "max_tokens": 40,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    with VllmServer(smollm2_dir, args, log_path=tmp_path / "server.log") as server:
        request = urllib.request.Request(
            server.base_url + "/v1/chat/completions",
            data=json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            choice = json.load(response)["choices"][0]
        processes = server.process_ids()
    # What it says depends on the CPU: see `check_bf16` in vllm_asd/diagnosis.py.
    assert choice["message"]["content"].strip()
    assert choice["finish_reason"] in ("stop", "length")
    assert len(processes) > 1
    assert not server.process_ids()
