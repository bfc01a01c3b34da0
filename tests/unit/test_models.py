"""The local models: made once, complete or absent, and what they claim to be."""

import json
from pathlib import Path

import pytest
import torch

from vllm_asd.tools.models import prepare_tiny_llama, prepare_tiny_llama_drafter
from vllm_asd.tools.models.cache import default_cache_dir, make_once
from vllm_asd.tools.models.low_precision import prepare_low_precision_copy, round_to_bits


class TestMakeOnce:
    def test_builds_the_first_time_only(self, tmp_path: Path) -> None:
        calls: list[Path] = []

        def build(folder: Path) -> None:
            calls.append(folder)
            (folder / "weights").write_text("w")

        first, second = make_once(tmp_path, "m", build), make_once(tmp_path, "m", build)
        assert first == second == tmp_path / "m"
        assert (first / "weights").read_text() == "w"
        assert len(calls) == 1

    def test_a_failed_build_leaves_nothing_that_looks_complete(self, tmp_path: Path) -> None:
        def build(folder: Path) -> None:
            (folder / "half").touch()
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            make_once(tmp_path, "m", build)
        assert [path.name for path in tmp_path.iterdir()] == [".m.lock"]

    def test_cache_follows_xdg(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert default_cache_dir() == tmp_path / "vllm-asd"


class TestRounding:
    @pytest.mark.parametrize("bits", [3, 4, 5, 8])
    def test_error_is_at_most_half_a_step_of_the_group(self, bits: int) -> None:
        weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(bits))
        step = weight.unflatten(1, (2, 32)).abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
        error = (round_to_bits(weight, bits) - weight).abs().unflatten(1, (2, 32))
        assert (error <= step / 2 + 1e-6).all()

    def test_zeros_stay_zeros(self) -> None:
        assert (round_to_bits(torch.zeros(2, 32, dtype=torch.bfloat16), 4) == 0).all()


class TestTinyLlama:
    def test_is_the_same_for_everybody(self, tmp_path: Path) -> None:
        one, other = prepare_tiny_llama(tmp_path / "a"), prepare_tiny_llama(tmp_path / "b")
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()

    def test_drafters_differ_in_weights_alone(self, tmp_path: Path) -> None:
        target = prepare_tiny_llama(tmp_path)
        drafters = prepare_tiny_llama_drafter(tmp_path), prepare_low_precision_copy(target, tmp_path, bits=6)
        weights = {(path / "model.safetensors").read_bytes() for path in (target, *drafters)}
        assert len(weights) == 3
        assert all(
            (path / "config.json").read_text() == (target / "config.json").read_text() for path in drafters
        )


@pytest.mark.slow
def test_smollm2_ends_its_turns(smollm2_dir: Path) -> None:
    """The chat template is ChatML, and generation stops at the end of a turn."""
    generation = json.loads((smollm2_dir / "generation_config.json").read_text())
    tokenizer = json.loads((smollm2_dir / "tokenizer_config.json").read_text())
    assert (generation["eos_token_id"], tokenizer["eos_token"]) == (2, "<|im_end|>")
    assert tokenizer["model_max_length"] == 8192
    assert "<|im_start|>assistant" in (smollm2_dir / "chat_template.jinja").read_text()
