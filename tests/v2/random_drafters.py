"""Random DSpark and MTP drafters: they load and draft, and are nearly always wrong."""

import json
from pathlib import Path

import torch
from torch import Tensor

from vllm_asd.tools.models.tiny_llama import VOCAB_SIZE

_HIDDEN, _INTERMEDIATE, _HEAD, _MARKOV_RANK = 64, 128, 32, 16
_ATTENTION = {
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_size": _HIDDEN,
    "intermediate_size": _INTERMEDIATE,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_random_dspark_drafter(folder: Path, seed: int = 0) -> Path:
    """A one-layer DSpark drafter for the tiny Llama, whose embeddings and head it shares."""
    config = {
        **_ATTENTION,
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "head_dim": _HEAD,
        "num_hidden_layers": 1,
        "markov_rank": _MARKOV_RANK,
        "target_layer_ids": [0, 1],
        "mask_token_id": 3,
    }
    shapes = _layer("layers.0") | {
        "fc": (_HIDDEN, 2 * _HIDDEN),
        "markov_head.markov_w1": (VOCAB_SIZE, _MARKOV_RANK),
        "markov_head.markov_w2": (VOCAB_SIZE, _MARKOV_RANK),
    }
    norms = _norms("layers.0") | {"hidden_norm": _HIDDEN, "norm": _HIDDEN}
    norms |= {f"layers.0.self_attn.{name}": _HEAD for name in ("q_norm", "k_norm")}
    return _save(folder, config, _random(shapes, seed) | _ones(norms))


def make_tiny_mimo(folder: Path, seed: int = 0) -> Path:
    """A random two-layer MiMo with its own MTP layer, without a tokenizer; target and drafter in one."""
    config = {
        **_ATTENTION,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
    }
    layers = ("model.layers.0", "model.layers.1", "model.mtp_layers.0")
    shapes = {
        "model.embed_tokens": (VOCAB_SIZE, _HIDDEN),
        "lm_head": (VOCAB_SIZE, _HIDDEN),
        "model.mtp_layers.0.input_proj": (_HIDDEN, 2 * _HIDDEN),
    }
    norms = {"model.norm": _HIDDEN}
    norms |= {f"model.mtp_layers.0.{name}_layernorm": _HIDDEN for name in ("token", "hidden")} | {
        "model.mtp_layers.0.final_layernorm": _HIDDEN
    }
    biases: dict[str, Tensor] = {}
    for layer in layers:
        shapes |= _layer(layer)
        norms |= _norms(layer)
        biases |= {f"{layer}.self_attn.{name}_proj.bias": torch.zeros(_HIDDEN) for name in "qkv"}
    weights = _random(shapes, seed) | _ones(norms) | biases
    return _save(folder, config, weights)


def _layer(prefix: str) -> dict[str, tuple[int, int]]:
    shapes = {f"{prefix}.self_attn.{name}_proj": (_HIDDEN, _HIDDEN) for name in "qkvo"}
    shapes |= {f"{prefix}.mlp.{name}_proj": (_INTERMEDIATE, _HIDDEN) for name in ("gate", "up")}
    return {**shapes, f"{prefix}.mlp.down_proj": (_HIDDEN, _INTERMEDIATE)}


def _norms(prefix: str) -> dict[str, int]:
    return {f"{prefix}.{name}_layernorm": _HIDDEN for name in ("input", "post_attention")}


def _random(shapes: dict[str, tuple[int, int]], seed: int) -> dict[str, Tensor]:
    """Scaled so that the text depends on its context and logits spread over a few nats."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{name}.weight": torch.randn(shape, generator=generator)
        * (0.25 if name == "lm_head" else 1.5 * shape[1] ** -0.5)
        for name, shape in shapes.items()
    }


def _ones(sizes: dict[str, int]) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.ones(size) for name, size in sizes.items()}


def _save(folder: Path, config: dict[str, object], weights: dict[str, Tensor]) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder
