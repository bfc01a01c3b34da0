"""A target whose next token depends on the last one alone, decoded through the V1 seam, many rows at once.

The law of its first two tokens is known exactly. A draft is a fixed follower of the token before, as those of
n-grams and greedy drafters are, or drawn from a law that vLLM is told, as a sampling drafter's is.
"""

import numpy as np
import torch

from tests.v1_step import Runner, attach, metadata, sampling
from vllm_asd.config import AsdConfig

NEVER = 1e-12  # a gate that no regret but an exact tie passes, and yet not "strict", which is vLLM's alone


class ToyChain:
    """Rows of the same request, each with its own ledger and noise.

    Attributes:
        first_block: What :meth:`two_tokens` emitted in its first step.
    """

    first_block: torch.Tensor

    def __init__(
        self,
        table: torch.Tensor,
        drafter: torch.Tensor,
        num_rows: int,
        config: AsdConfig,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seeded: bool = False,
        couple: bool = True,
    ) -> None:
        """Open the requests.

        Args:
            table: [V, V] float32, the target's logits behind each token.
            drafter: [V] int64, the draft behind each token; or [V, V] float32, the law that it is drawn from.
            num_rows: Requests.
            config: With ``asd_sampling`` "gumbel".
            temperature: Of all requests, as the next two.
            top_k: As vLLM's.
            top_p: As vLLM's.
            seeded: Whether each request has a generator of its own.
            couple: False leaves the requests to vLLM's own rejection sampling.
        """
        self.table, self.drafter = table, drafter
        self.runner = Runner(num_rows)
        self._limits = {f"r{row}": config.limits for row in range(num_rows)} if couple else {}
        attach(self.runner, config, self._limits, sampled=True)
        generators = {row: torch.Generator().manual_seed(row) for row in range(num_rows)} if seeded else None
        self.runner.sampling = sampling([temperature] * num_rows, generators, top_k=top_k, top_p=top_p)

    def renew(self) -> None:
        """Give every coupled request a new account."""
        self.runner.asd_verifier.release(self._limits)
        for request_id, limits in self._limits.items():
            self.runner.asd_verifier.admit(request_id, limits, sampled=True)

    def step(self, contexts: torch.Tensor, num_drafts: int) -> torch.Tensor:
        """Verify drafts behind each row's last token; [R, num_drafts + 1] emitted, padded with -1."""
        tokens = [contexts]
        for _ in range(num_drafts):
            tokens.append(self._draft(tokens[-1]))
        made = torch.stack(tokens, dim=1)
        if self.drafter.dim() > 1:
            self.runner.draft_probs = self.drafter[made[:, :-1]].flatten(0, 1)
        logits = self.table[made].flatten(0, 1)
        step = (logits, metadata(made[:, 1:].tolist()))
        emitted: torch.Tensor = self.runner.sample_tokens(step).output.sampled_token_ids
        return emitted.to(torch.int64)

    def _draft(self, contexts: torch.Tensor) -> torch.Tensor:
        if self.drafter.dim() == 1:
            return self.drafter[contexts]
        return self.drafter[contexts].multinomial(1).squeeze(1)

    def two_tokens(self, num_drafts: int = 2) -> torch.Tensor:
        """Decode two tokens behind token 0: [R, 2]. A row whose block is cut gets another."""
        emitted = self.step(torch.zeros(len(self.runner.input_batch.req_ids), dtype=torch.int64), num_drafts)
        self.first_block = emitted
        cut = emitted[:, 1] < 0
        following = self.step(emitted[:, 0], num_drafts)
        return torch.stack((emitted[:, 0], torch.where(cut, following[:, 0], emitted[:, 1])), dim=1)


def sampling_law(
    logits: torch.Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> np.ndarray:
    """The law that vLLM documents, in double precision: temperature, then top-k, then top-p of what is left.

    Args:
        logits: [..., V].
        temperature: > 0.
        top_k: How many tokens are kept.
        top_p: The smallest set of the likeliest tokens that reaches this mass is kept.

    Returns:
        [..., V] probabilities.
    """
    scaled = logits.double().numpy() / temperature
    order = np.argsort(-scaled, axis=-1)
    ranked = np.take_along_axis(scaled, order, -1)
    if top_k is not None:
        ranked[..., top_k:] = -np.inf
    law = np.exp(ranked - ranked[..., :1])
    law /= law.sum(-1, keepdims=True)
    if top_p is not None:
        law[np.cumsum(law, -1) - law >= top_p] = 0
        law /= law.sum(-1, keepdims=True)
    unsorted: np.ndarray = np.take_along_axis(law, np.argsort(order, axis=-1), -1)
    return unsorted


def joint_law(table: torch.Tensor, **sampling_parameters: float | None) -> np.ndarray:
    """[V, V]: the law of the first two tokens behind token 0."""
    law = sampling_law(table, **sampling_parameters)  # type: ignore[arg-type]
    joint: np.ndarray = law[0][:, None] * law
    return joint


def boosted(law: np.ndarray, draft: int, nats: float) -> np.ndarray:
    """The law when a draft is kept at up to so many nats of regret: as if its logit were that much higher."""
    raised = law.copy()
    raised[draft] *= np.exp(nats)
    raised /= raised.sum()
    return raised
