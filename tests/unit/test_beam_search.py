"""A beam search never speculates, so a request that asks for one and sends ``asd_`` keys is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError

from vllm_asd.config import AsdConfig
from vllm_asd.upstream import requests
from vllm_asd.upstream.patching import APPLIED

MESSAGES = [{"role": "user", "content": "Hi"}]


def completion(**fields: Any) -> Any:
    """As the HTTP route parses it."""
    return CompletionRequest(model="m", prompt="Hi", n=2, use_beam_search=True, **fields)


def chat(**fields: Any) -> Any:
    """As the HTTP route parses it."""
    return ChatCompletionRequest(model="m", messages=MESSAGES, n=2, use_beam_search=True, **fields)


ROUTES = pytest.mark.parametrize("request_with", [completion, chat])


@pytest.fixture
def served() -> Iterator[None]:
    """A front end that has ASD on."""
    requests.install(AsdConfig())
    yield
    APPLIED.undo_all()
    requests._served.clear()


@ROUTES
def test_asd_keys_in_a_beam_search_are_refused(served: None, request_with: Callable[..., Any]) -> None:
    """In one line, with the key and the fix, also where the value would be fine."""
    request = request_with(vllm_xargs={"other": 1, "asd_gate": 0.1})
    with pytest.raises(VLLMValidationError, match=r"^asd_gate does nothing .* or the asd_ keys$"):
        request.to_beam_search_params(8, {})


@ROUTES
@pytest.mark.parametrize("xargs", [None, {}, {"other": 1}])
def test_other_beam_searches_are_vllms(
    served: None, request_with: Callable[..., Any], xargs: dict[str, Any] | None
) -> None:
    """Without our keys nothing changes."""
    assert request_with(vllm_xargs=xargs).to_beam_search_params(8, {}).beam_width == 2


@ROUTES
def test_without_asd_nothing_is_checked(request_with: Callable[..., Any]) -> None:
    """The patch is in place only where ASD is on."""
    assert request_with(vllm_xargs={"asd_gate": 0.1}).to_beam_search_params(8, {}).beam_width == 2
