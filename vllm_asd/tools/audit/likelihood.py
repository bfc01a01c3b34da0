"""The target's mean log-likelihood of answers: sees a change where a score can't."""

from collections.abc import Iterable
from typing import Any

from vllm_asd.tools.audit.responses import Record
from vllm_asd.tools.audit.sender import Answered, Request, Sender
from vllm_asd.tools.server.served import Served

Likelihoods = dict[tuple[tuple[int, ...], tuple[int, ...]], float]


def mean_loglikelihoods(served: Served, answers: Iterable[Record], sender: Sender) -> Likelihoods:
    """Score each answer's tokens behind its prompt with the target alone.

    Args:
        served: The server.
        answers: With `prompt_ids` and `token_ids`; equal ones are scored once.
        sender: To the completions route.

    Returns:
        Nats per token, by prompt and answer. Without the answers that are empty, or that fill the model's
        length: one more token must fit.
    """
    pairs = {(tuple(answer["prompt_ids"]), tuple(answer["token_ids"])) for answer in answers}
    fitting = sorted(pair for pair in pairs if pair[1] and sum(map(len, pair)) < served.max_model_len)
    requests = [Request(("likelihood",), _payload(served, *pair)) for pair in fitting]
    records = sender.send("likelihood", requests, _parse)
    means = {}
    for (prompt, answer), record in zip(fitting, records, strict=True):
        means[prompt, answer] = sum(record["logprobs"][len(prompt) :]) / len(answer)
    return means


def _payload(served: Served, prompt: tuple[int, ...], answer: tuple[int, ...]) -> dict[str, Any]:
    return {
        "model": served.model,
        "prompt": [*prompt, *answer],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 0,
        "vllm_xargs": {"asd_budget": 0},
    }


def _parse(answered: Answered) -> Record:
    """Each position's log-probability of its own token; the first position has none."""
    positions = answered.body["choices"][0]["prompt_logprobs"]
    return {"logprobs": [0.0, *(next(iter(entry.values()))["logprob"] for entry in positions[1:])]}
