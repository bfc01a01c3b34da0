"""`vllm-asd explain`: a response with every relaxed token, and what the target would have said."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from vllm_asd.cli import options
from vllm_asd.cli.ending import checking
from vllm_asd.tools.explain import html as html_page
from vllm_asd.tools.explain import terminal
from vllm_asd.tools.explain.transcript import read_transcript
from vllm_asd.tools.json_object import read_object, read_text
from vllm_asd.tools.limits_option import read_limits
from vllm_asd.tools.server.keyed_request import keyed_request, use_api_key
from vllm_asd.tools.server.served import NotServed
from vllm_asd.tools.usage import BadUsage

app = typer.Typer(add_completion=False)
_TIMEOUT_S = 600.0
_RESPONSE = "give a saved completion or chat completion"


@options.register(app, "explain")
def main(
    response: Annotated[
        Path | None, typer.Argument(help="A saved completion or chat completion (JSON).")
    ] = None,
    url: options.OptionalUrl = None,
    api_key: options.ApiKey = None,
    prompt: Annotated[str | None, typer.Option(help="What to ask it.")] = None,
    served_model: options.ServedModel = None,
    max_tokens: Annotated[int, typer.Option(help="Of the answer.", min=1)] = 256,
    chat: options.Chat = True,
    limits: options.Limits = None,
    html: Annotated[Path | None, typer.Option(help="Write the page here as well.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the response (JSON) here.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what was relaxed in one response: highlighted by regret, beside what the target would have said.

    The server must run with --per-request-spec-decode-metrics detailed. A saved response must have been asked
    for with log-probabilities ("logprobs": 1, in a chat "logprobs": true, "top_logprobs": 2).

    Example: vllm-asd explain --url http://localhost:8000 --prompt "Why is the sky blue?" --html answer.html
    --limits '{"asd_budget": 2}'
    """
    use_api_key(api_key)
    with checking():
        for target in (save, html):
            # Now, not after an answer that took a minute.
            _refuse_unwritable(target)
        keys = {} if limits is None else read_limits(limits).keys
        if response is not None:
            if limits is not None or url is not None or prompt is not None:
                raise BadUsage("--limits, --url and --prompt are for asking a server: drop them, or RESPONSE")
            answer = read_object(response, read_text("RESPONSE", response), _RESPONSE)
            transcript = read_transcript(answer)
        elif url is None or prompt is None:
            raise BadUsage("give a saved response, or --url and --prompt")
    if response is None and url is not None and prompt is not None:
        answer = _ask(url, served_model, prompt, max_tokens, chat, keys)
        transcript = read_transcript(answer)
    if save is not None:
        save.write_text(json.dumps(answer, indent=1), encoding="utf-8")
    if html is not None:
        html.write_text(html_page.render(transcript), encoding="utf-8")
    if as_json:
        options.print_json(transcript.as_json())
    else:
        console = Console(highlight=False)
        console.print(terminal.render(transcript, console))


def _refuse_unwritable(target: Path | None) -> None:
    if target is not None and not target.absolute().parent.is_dir():
        raise BadUsage(f"there is no folder {target.parent} for {target.name}")
    if target is not None and target.is_dir():
        raise BadUsage(f"{target} is a folder: name a file")


def _ask(
    url: str, model: str | None, prompt: str, max_tokens: int, chat: bool, keys: dict[str, Any]
) -> dict[str, Any]:
    base = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    body: dict[str, Any] = {
        "model": model or _first_model(base),
        "temperature": 0,
        "max_tokens": max_tokens,
        "vllm_xargs": keys,
    }
    if chat:
        # The kept token counts as one of the two.
        body |= {"messages": [{"role": "user", "content": prompt}], "logprobs": True, "top_logprobs": 2}
        return _request(f"{base}/v1/chat/completions", body)
    return _request(f"{base}/v1/completions", body | {"prompt": prompt, "logprobs": 1})


def _first_model(base: str) -> str:
    try:
        return str(_request(f"{base}/v1/models")["data"][0]["id"])
    except (LookupError, TypeError):
        raise NotServed(f"{base} lists no model: is that a vLLM server?") from None


def _request(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(keyed_request(url, data), timeout=_TIMEOUT_S) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        said = _message(error.read().decode(errors="replace"))
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise NotServed(f"{url} asks for a key: give --api-key, or set VLLM_API_KEY") from None
        raise NotServed(f"{url} answered {error.code}: {said}") from None
    except (OSError, ValueError) as error:
        raise NotServed(f"no answer from the server: {getattr(error, 'reason', error)}") from None
    if not isinstance(answer, dict):
        raise NotServed(f"{url} answered no JSON object: is that a vLLM server?")
    return answer


def _message(body: str) -> str:
    """What went wrong, out of the error object that OpenAI's API answers with."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:300]
