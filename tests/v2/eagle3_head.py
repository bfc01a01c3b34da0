"""A random EAGLE-3 head for the tiny Llama: it loads and drafts, and is nearly always wrong."""

import json
from pathlib import Path

import torch

from vllm_asd.tools.models.tiny_llama import VOCAB_SIZE

_HIDDEN, _INTERMEDIATE, _DRAFT_VOCAB = 64, 128, 256


def make_random_eagle3_head(folder: Path, seed: int = 0) -> Path:
    """Write the head in Hugging Face layout; its vocabulary is every other token of the target's."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": _DRAFT_VOCAB,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        "fc": (_HIDDEN, 3 * _HIDDEN),
        "lm_head": (_DRAFT_VOCAB, _HIDDEN),
        "midlayer.mlp.down_proj": (_HIDDEN, _INTERMEDIATE),
        "midlayer.mlp.gate_proj": (_INTERMEDIATE, _HIDDEN),
        "midlayer.mlp.up_proj": (_INTERMEDIATE, _HIDDEN),
        "midlayer.self_attn.k_proj": (_HIDDEN, 2 * _HIDDEN),
        "midlayer.self_attn.o_proj": (_HIDDEN, _HIDDEN),
        "midlayer.self_attn.q_proj": (_HIDDEN, 2 * _HIDDEN),
        "midlayer.self_attn.v_proj": (_HIDDEN, 2 * _HIDDEN),
    }
    generator = torch.Generator().manual_seed(seed)
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator) * shape[1] ** -0.5
        for name, shape in shapes.items()
    }
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    weights |= {f"midlayer.{name}.weight": torch.ones(_HIDDEN) for name in norms}
    weights["norm.weight"] = torch.ones(_HIDDEN)
    in_draft = torch.arange(VOCAB_SIZE) % 2 == 0
    weights["t2d"] = in_draft
    # Offsets: draft token i is the target's token i + d2t[i].
    weights["d2t"] = in_draft.nonzero().squeeze(1) - torch.arange(_DRAFT_VOCAB)
    save_file(weights, folder / "model.safetensors")
    return folder
