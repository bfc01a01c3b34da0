"""The demo reads what the server says, and shows each exception where it stands in the text."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from vllm_asd.tools.demo import render
from vllm_asd.tools.demo.client import Answer, Kept, MetricsMissing, TokenText, read_answer
from vllm_asd.tools.demo.prompts import PROMPTS


def response(token_ids: list[int], steps: int, accepted: int, **asd: Any) -> dict[str, Any]:
    speculation = {
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "asd": {"budget": 8.0, "regret_spent": 0.0, "exception_trace": [], **asd},
    }
    return {"choices": [{"token_ids": token_ids}], "metrics": {"speculative_decoding": speculation}}


def answer(token_ids: list[int], *exceptions: Kept, rounds: int = 4) -> Answer:
    spent = sum(kept.regret for kept in exceptions)
    return Answer(tuple(token_ids), rounds, rounds, spent, 8.0 if exceptions else 0.0, exceptions)


class TestReading:
    def test_rounds_without_a_draft_count(self) -> None:
        """20 tokens: one from the prompt's pass, 3 + 9 from three verifications, 7 from plain rounds."""
        read = read_answer(response(list(range(20)), steps=3, accepted=9))
        assert (read.verifications, read.rounds) == (3, 10)
        assert read.tokens_per_round == 1.9

    def test_a_block_that_runs_past_the_end_adds_no_round(self) -> None:
        assert read_answer(response(list(range(10)), steps=3, accepted=9)).rounds == 3

    def test_exceptions(self) -> None:
        trace = [{"position": 4, "token_id": 7, "target_token_id": 9, "regret": 0.5}]
        read = read_answer(response([1] * 6, 2, 3, regret_spent=0.5, exception_trace=trace))
        assert read.exceptions == (Kept(4, 9, 0.5),)
        assert (read.spent, read.budget) == (0.5, 8.0)

    @pytest.mark.parametrize("metrics", [None, {}, {"speculative_decoding": {"num_spec_steps": 3}}])
    def test_a_server_without_asd_is_an_error(self, metrics: Any) -> None:
        with pytest.raises(MetricsMissing, match="is ASD on"):
            read_answer({"choices": [{"token_ids": [1]}], "metrics": metrics})


class TestRendering:
    @pytest.fixture
    def text(self, tmp_path: Path) -> TokenText:
        """One token per byte, numbered in `ByteLevel`'s order, and `ab` as one more."""
        alphabet = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
        tokenizer = Tokenizer(BPE(vocab={**alphabet, "ab": 256}, merges=[("a", "b")]))
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        tokenizer.decoder = ByteLevelDecoder()
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        self.tokenizer = tokenizer
        return TokenText(tmp_path)

    def ids(self, words: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(words).ids
        return ids

    @pytest.mark.parametrize("words", ["tab a cab", "caf\u00e9 \u20ac 5", "line\n  next"])
    def test_pieces_join_to_the_text(self, text: TokenText, words: str) -> None:
        ids = self.ids(words)
        assert len(text.pieces(ids)) == len(ids)
        assert "".join(text.pieces(ids)) == words

    def test_an_exception_stands_in_its_place_beside_the_targets_token(self, text: TokenText) -> None:
        (target,) = self.ids("\n")
        marked = render.marked_text(answer(self.ids("cab!"), Kept(1, target, 0.1)), text)
        assert marked.plain == "c\u00abab|\u21b5\u00bb!"

    def test_markup_in_an_answer_is_text(self, text: TokenText) -> None:
        marked = render.marked_text(answer(self.ids("[red]a"), Kept(5, self.ids("b")[0], 0.1)), text)
        assert marked.plain == "[red]\u00aba|b\u00bb"

    def parting(self, strict: list[int], asd: list[int], *exceptions: Kept) -> str:
        return render.parting(render.Pair(PROMPTS[0], answer(strict), answer(asd, *exceptions)))

    def test_parting(self) -> None:
        assert self.parting([1, 2], [1, 2]) == "The texts are the same."
        assert "after 1 tokens, at the first exception" in self.parting([1, 2], [1, 3], Kept(1, 2, 0.1))
        assert "where there is no exception" in self.parting([1, 2], [3, 2], Kept(1, 2, 0.1))
        assert "after 2 tokens" in self.parting([1, 2], [1, 2, 3], Kept(2, 9, 0.1))

    def test_summary_adds_up(self) -> None:
        """31 tokens in 10 rounds against 31 in 5: (31 - 1) / 5 over (31 - 1) / 10 is 2."""
        pair = render.Pair(
            PROMPTS[0], answer([1] * 31, rounds=10), answer([1] * 31, Kept(3, 2, 0.5), rounds=5)
        )
        out = io.StringIO()
        render.show_summary(Console(file=out, width=100), [render.Series("copy", [pair])])
        row = " ".join(out.getvalue().split("\n")[3].split())
        assert row == "copy 31 / 31 10 / 5 3.00 / 6.00 2.00 3.2 0.50"

    def test_plain_output_has_no_escape_codes(self, text: TokenText) -> None:
        out = io.StringIO()
        pair = render.Pair(PROMPTS[0], answer(self.ids("ab")), answer(self.ids("ac"), Kept(1, 5, 0.5)))
        render.show_pair(Console(file=out, width=100), pair, text)
        assert "\x1b" not in out.getvalue()


def test_prompts_fit_both_routes() -> None:
    assert {prompt.route for prompt in PROMPTS} == {"chat", "completion"}
    json.dumps([vars(prompt) for prompt in PROMPTS])
