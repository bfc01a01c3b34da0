"""lm-eval's API models with an arm's limits on every request, and the whole response kept."""

import copy
import json
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from vllm_asd.tools.audit.items import Arm
from vllm_asd.tools.audit.responses import Record
from vllm_asd.tools.audit.sender import Answered, Request, Sender
from vllm_asd.tools.server.served import Served

CHAT_ROUTE, COMPLETIONS_ROUTE = "/v1/chat/completions", "/v1/completions"
_MOST_STOP_WORDS = 4


class _ArmModel:
    """What both have in common: requests become ours, and answers are kept by task and item."""

    def _prepare(self, arm: Arm, xargs: dict[str, Any], sender: Sender) -> None:
        self._arm = arm
        self._xargs = xargs
        self._sender = sender
        self.answers: dict[tuple[str, str], Record] = {}

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002
        """Answer all of them, in their order, as many at a time as the audit was asked for.

        In place of lm-eval's own loop, which works through one group of generation settings after the other
        and keeps texts alone.
        """
        names = [(str(request.task_name), item_id(request.doc, request.doc_id)) for request in requests]
        ours = [
            Request((*name, self._arm), self._payload(request))
            for name, request in zip(names, requests, strict=True)
        ]
        records = self._sender.send(self._arm, ours, self._parse)
        self.answers.update(zip(names, records, strict=True))
        return [record["text"] for record in records]

    def _payload(self, request: Instance) -> dict[str, Any]:
        context, gen_kwargs = request.args
        payload: dict[str, Any] = self._create_payload(  # type: ignore[attr-defined]
            self.create_message([context]),  # type: ignore[attr-defined]
            generate=True,
            gen_kwargs=copy.deepcopy(gen_kwargs),
            seed=self._seed,  # type: ignore[attr-defined]
        )
        if payload.get("messages", [{}])[-1].get("role") == "assistant":
            # A task's `gen_prefix`: the model goes on from it.
            payload |= {"add_generation_prompt": False, "continue_final_message": True}
        # vLLM takes no more; for chats lm-eval cuts the list itself.
        payload["stop"] = payload["stop"][:_MOST_STOP_WORDS]
        return payload | {"return_token_ids": True, "vllm_xargs": self._xargs}

    def _parse(self, answered: Answered) -> Record:
        choice = answered.body["choices"][0]
        speculation = answered.body["metrics"]["speculative_decoding"]
        message = choice.get("message")
        return {
            "text": (choice["text"] if message is None else message["content"]) or "",
            "prompt_ids": answered.body.get("prompt_token_ids") or choice["prompt_token_ids"],
            "token_ids": choice["token_ids"],
            "finish_reason": choice["finish_reason"],
            "latency_s": answered.latency_s,
            "rounds": speculation["num_spec_steps"],
            "accepted": speculation["num_accepted_draft_tokens"],
            "asd": speculation["asd"],
        }


class ChatModel(_ArmModel, LocalChatCompletion):
    """For instruction-tuned models: the server applies the chat template."""

    def __init__(self, served: Served, arm: Arm, xargs: dict[str, Any], sender: Sender) -> None:
        """Set lm-eval's model up without a tokenizer: prompts go out as text."""
        LocalChatCompletion.__init__(self, **_arguments(served, CHAT_ROUTE))
        self._prepare(arm, xargs, sender)


class CompletionsModel(_ArmModel, LocalCompletionsAPI):
    """For base models: the prompt is the text."""

    def __init__(self, served: Served, arm: Arm, xargs: dict[str, Any], sender: Sender) -> None:
        """Set lm-eval's model up without a tokenizer: prompts go out as text."""
        LocalCompletionsAPI.__init__(self, **_arguments(served, COMPLETIONS_ROUTE))
        self._prepare(arm, xargs, sender)


def item_id(document: dict[str, Any], number: int | None) -> str:
    """A document's own id where it has one, else its place in the task."""
    return str(document.get("id", number))


def prompt_text(context: Any) -> str:
    """The text that the model is shown: of a chat, the messages' contents."""
    if isinstance(context, str):
        return context
    return "\n\n".join(str(message["content"]) for message in json.loads(context.prompt))


def _arguments(served: Served, route: str) -> dict[str, Any]:
    return {
        "model": served.model,
        "base_url": served.base_url + route,
        "tokenizer_backend": None,
        "tokenized_requests": False,
        "max_length": served.max_model_len,
    }


def prompts_of(instances: Sequence[Instance]) -> dict[tuple[str, str], str]:
    """Each item's prompt."""
    return {(str(one.task_name), item_id(one.doc, one.doc_id)): prompt_text(one.args[0]) for one in instances}
