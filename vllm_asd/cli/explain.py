"""`vllm-asd explain`: a response with every relaxed token, and what the target would have said."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from vllm_asd.tools.explain import html as html_page
from vllm_asd.tools.explain import terminal
from vllm_asd.tools.explain.transcript import TranscriptError, read_transcript
from vllm_asd.tools.json_object import LIMITS_EXAMPLE, NotAnObject, read_object
from vllm_asd.tools.server.keyed_request import keyed_request

app = typer.Typer(add_completion=False)
_TIMEOUT_S = 600.0


@app.command()
def main(
    response: Annotated[
        Path | None, typer.Argument(help="A saved completion or chat completion (JSON).", dir_okay=False)
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Ask this server instead, for example http://localhost:8000.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="What to ask it.")] = None,
    model: Annotated[str | None, typer.Option(help="Default: the server's first model.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Of the answer.", min=1)] = 256,
    chat: Annotated[bool, typer.Option(help="Ask as a chat message, or as plain text.")] = True,
    xargs: Annotated[
        str | None, typer.Option(help="The request's vllm_xargs (JSON), for example '{\"asd_budget\": 2}'.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page here as well.", dir_okay=False)] = None,
    save: Annotated[Path | None, typer.Option(help="Write the response (JSON) here.", dir_okay=False)] = None,
) -> None:
    """Show what was relaxed in one response: highlighted by regret, beside what the target would have said.

    The server must run with --per-request-spec-decode-metrics detailed. A saved response must have been asked
    for with log-probabilities ("logprobs": 1, in a chat "logprobs": true, "top_logprobs": 2).

    Example: vllm-asd explain --url http://localhost:8000 --prompt "Why is the sky blue?" --html answer.html
    --xargs '{"asd_budget": 2}'
    """
    for target in (save, html):
        # Now, not after an answer that took a minute.
        if target is not None and not target.absolute().parent.is_dir():
            typer.echo(f"vllm-asd explain: there is no folder {target.parent} for {target.name}", err=True)
            raise typer.Exit(1)
    try:
        if response is not None:
            if xargs is not None:
                raise TranscriptError("--xargs is for asking a server: drop it, or the saved response")
            answer = _load(response)
        else:
            given = {} if xargs is None else read_object("--xargs", xargs, LIMITS_EXAMPLE)
            answer = _ask(url, model, prompt, max_tokens, chat, given)
        transcript = read_transcript(answer)
    except (TranscriptError, NotAnObject, OSError, json.JSONDecodeError) as error:
        typer.echo(f"vllm-asd explain: {_reason(error)}", err=True)
        raise typer.Exit(1) from None
    if save is not None:
        save.write_text(json.dumps(answer, indent=1), encoding="utf-8")
    if html is not None:
        html.write_text(html_page.render(transcript), encoding="utf-8")
    console = Console(highlight=False)
    console.print(terminal.render(transcript, console))


def _load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _ask(
    url: str | None, model: str | None, prompt: str | None, max_tokens: int, chat: bool, xargs: dict[str, Any]
) -> dict[str, Any]:
    if url is None or prompt is None:
        raise TranscriptError("give a saved response, or --url and --prompt")
    base = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    body: dict[str, Any] = {
        "model": model or _request(f"{base}/v1/models")["data"][0]["id"],
        "temperature": 0,
        "max_tokens": max_tokens,
        "vllm_xargs": xargs,
    }
    if chat:
        # The kept token counts as one of the two.
        body |= {"messages": [{"role": "user", "content": prompt}], "logprobs": True, "top_logprobs": 2}
        return _request(f"{base}/v1/chat/completions", body)
    return _request(f"{base}/v1/completions", body | {"prompt": prompt, "logprobs": 1})


def _request(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(keyed_request(url, data), timeout=_TIMEOUT_S) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.url} answered {error.code}: {_message(error.read().decode(errors='replace'))}"
    if isinstance(error, urllib.error.URLError):
        return f"no answer from the server: {error.reason}"
    if isinstance(error, json.JSONDecodeError):
        return f"this is not JSON: {error}"
    return str(error)


def _message(body: str) -> str:
    """What went wrong, out of the error object that OpenAI's API answers with."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:300]
