"""Ask a server through the ordinary OpenAI client, and read what it says about speculation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from tokenizers import Tokenizer

from vllm_asd.tools.demo.prompts import Prompt
from vllm_asd.tools.server.keyed_request import api_key

STRICT = {"asd_budget": 0}
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Kept:
    """An exception: a token that was kept although the target's own choice is another.

    Attributes:
        position: Of the token in the answer, from 0.
        target_id: The target's own choice.
        regret: What it cost, in nats.
    """

    position: int
    target_id: int
    regret: float


@dataclass(frozen=True)
class Answer:
    """One answer and what it took.

    Attributes:
        token_ids: The answer's tokens, a stop token included.
        verifications: Rounds in which the target checked drafts.
        rounds: Those, and the rounds in which there was no draft to check. The prompt's own pass, which gives
            the first token, isn't one.
        spent: Nats of regret charged to the request.
        budget: Nats it could have spent.
        exceptions: In order; empty when strict.
    """

    token_ids: tuple[int, ...]
    verifications: int
    rounds: int
    spent: float
    budget: float
    exceptions: tuple[Kept, ...]

    @property
    def tokens_per_round(self) -> float:
        """Tokens behind the first, per round."""
        return (len(self.token_ids) - 1) / max(self.rounds, 1)


class MetricsMissing(RuntimeError):
    """The response says nothing about speculation or ASD: the demo would be showing something else."""


class DemoClient:
    """The OpenAI client, pointed at a server that serves one model."""

    def __init__(self, base_url: str, model: str) -> None:
        """Nothing is sent yet.

        Args:
            base_url: Of the server, without `/v1`.
            model: The name it serves the model under.
        """
        self._client = openai.OpenAI(
            base_url=f"{base_url}/v1", api_key=api_key(), timeout=_TIMEOUT_S, max_retries=0
        )
        self._model = model

    def ask(self, prompt: Prompt, *, strict: bool) -> Answer:
        """Send one request at temperature 0.

        Args:
            prompt: What to send.
            strict: With a budget of 0; otherwise the server's limits hold.

        Raises:
            MetricsMissing: If the response doesn't say what happened.
        """
        extra: dict[str, Any] = {"return_token_ids": True}
        if strict:
            extra["vllm_xargs"] = STRICT
        if prompt.route == "chat":
            response: Any = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt.text}],
                temperature=0,
                max_tokens=prompt.max_tokens,
                extra_body=extra,
            )
        else:
            response = self._client.completions.create(
                model=self._model,
                prompt=prompt.text,
                temperature=0,
                max_tokens=prompt.max_tokens,
                extra_body=extra,
            )
        return read_answer(response.model_dump())


def read_answer(response: dict[str, Any]) -> Answer:
    """Read a chat or text completion.

    Args:
        response: The response's JSON.

    Raises:
        MetricsMissing: If `metrics.speculative_decoding.asd` isn't there.
    """
    speculation = (response.get("metrics") or {}).get("speculative_decoding") or {}
    asd = speculation.get("asd")
    if asd is None:
        raise MetricsMissing(
            "the response has no metrics.speculative_decoding.asd: is ASD on, and was the server started "
            "with --per-request-spec-decode-metrics detailed?"
        )
    token_ids = tuple(response["choices"][0]["token_ids"])
    verifications = speculation["num_spec_steps"]
    from_verifications = verifications + speculation["num_accepted_draft_tokens"]
    # A last block that runs past the end of the answer counts in full, hence the maximum.
    without_draft = max(0, len(token_ids) - 1 - from_verifications)
    return Answer(
        token_ids=token_ids,
        verifications=verifications,
        rounds=verifications + without_draft,
        spent=asd["regret_spent"],
        budget=asd["budget"],
        exceptions=tuple(
            Kept(entry["position"], entry["target_token_id"], entry["regret"])
            for entry in asd["exception_trace"]
        ),
    )


class TokenText:
    """Text of token ids, exactly as they stand in an answer."""

    def __init__(self, model_dir: Path) -> None:
        """Load the model's tokenizer."""
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text that each token adds; empty for one that ends inside a character."""
        pieces, before = [], ""
        for end in range(1, len(token_ids) + 1):
            after: str = self._tokenizer.decode(list(token_ids[:end]), skip_special_tokens=False)
            after = after.rstrip("\ufffd")
            pieces.append(after[len(before) :])
            before = after
        return pieces

    def replaced(self, token_ids: Sequence[int], position: int, token_id: int) -> str:
        """The text that another token would have added at that position."""
        return self.pieces([*token_ids[:position], token_id])[-1]
