"""A random two-layer Llama that an engine loads in a second, and a perturbed copy to draft for it."""

import shutil
from pathlib import Path

from vllm_asd.tools.models.cache import make_once

VOCAB_SIZE = 512
_SPECIAL = ["<unk>", "<s>", "</s>", "<think>", "</think>"]
_CHAT_TEMPLATE = (
    "{{ '<s>' }}{% for message in messages %} {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %} {% endif %}"
)


def prepare_tiny_llama(cache_dir: Path, seed: int = 0) -> Path:
    """A random Llama: 2 layers, hidden size 64, vocabulary 512, fp32, with a word-level tokenizer.

    Its weights are scaled up from the usual initialisation, so that greedy text depends on its context and
    the logits spread over a few nats instead of tying everywhere. The tokenizer knows the words `t5` to
    `t511`.

    Args:
        cache_dir: Where to keep it.
        seed: Of the weights.

    Returns:
        The model's folder.
    """

    def build(folder: Path) -> None:
        _save_model(folder, seed)
        _save_tokenizer(folder)

    return make_once(cache_dir, f"tiny-llama-s{seed}", build)


def prepare_tiny_llama_drafter(cache_dir: Path, scale: float = 0.02, seed: int = 0) -> Path:
    """The tiny Llama with noise on its matrices: a drafter that mostly agrees with it.

    Args:
        cache_dir: Where to keep it.
        scale: Standard deviation of the noise, as a fraction of each matrix's own. 0 always agrees; along the
            target's greedy text .02 agrees on 80% of the tokens (median regret elsewhere .24), .05 on 54%
            (.63), .1 on 26% (1.34).
        seed: Of the target's weights; the noise has a seed of its own.

    Returns:
        The drafter's folder.
    """
    target = prepare_tiny_llama(cache_dir, seed)

    def build(folder: Path) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        shutil.copytree(target, folder, dirs_exist_ok=True)
        generator = torch.Generator().manual_seed(seed + 1)
        weights = load_file(folder / "model.safetensors")
        for tensor in weights.values():
            if tensor.ndim == 2:
                tensor += torch.randn(tensor.shape, generator=generator) * tensor.std() * scale
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return make_once(cache_dir, f"tiny-llama-s{seed}-noise{scale:g}", build)


def _save_model(folder: Path, seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    # Two heads of 32: the smallest head that vLLM's CPU attention takes.
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                std = 0.25 if name.startswith("lm_head") else parameter.shape[1] ** -0.5 * 1.5
                torch.nn.init.normal_(parameter, std=std)
    model.save_pretrained(folder)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = [*_SPECIAL, *(f"t{index}" for index in range(len(_SPECIAL), VOCAB_SIZE))]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=1024,
    )
    wrapped.chat_template = _CHAT_TEMPLATE
    wrapped.save_pretrained(folder)
