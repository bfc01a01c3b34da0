"""What answers at a URL: which model, under which ASD limits, with how detailed reports."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from vllm_asd.config import RequestLimits
from vllm_asd.tools.server.keyed_request import keyed_request

_TIMEOUT_S = 60.0
_FIX = "--per-request-spec-decode-metrics detailed"


class NotServed(ValueError):
    """The server can't be used; the message is one line that says what is wrong and what mends it."""


@dataclass(frozen=True)
class Served:
    """A server that runs ASD.

    Attributes:
        base_url: Without `/v1` and without a trailing slash.
        model: The served name.
        root: The model folder or hub name it was started with.
        max_model_len: Tokens of prompt and answer together.
        vllm_version: What it says about itself.
        limits: What a request runs under that asks for nothing.
        detailed: Whether reports list every exception.
        num_draft_tokens: K, as far as one probing request showed; None if it drafted nothing.
    """

    base_url: str
    model: str
    root: str
    max_model_len: int
    vllm_version: str
    limits: RequestLimits
    detailed: bool
    num_draft_tokens: int | None


def inspect_server(url: str, model: str | None = None) -> Served:
    """Ask a server what it is, with one short request.

    Args:
        url: With or without a scheme, `/v1` or a trailing slash.
        model: A served name; None takes the first.

    Raises:
        NotServed: Nobody answers, it is no vLLM, it has no ASD, or it does not report per request.
    """
    base = url if "://" in url else f"http://{url}"
    base = base.rstrip("/").removesuffix("/v1")
    models = _ask(base, "/v1/models").get("data") or []
    found = next((entry for entry in models if model in (None, entry["id"])), None)
    if found is None:
        names = ", ".join(str(entry["id"]) for entry in models)
        raise NotServed(f"{base} serves {names or 'no model'}, not {model}: correct the model's name")
    version = str(_ask(base, "/version").get("version", "unknown"))
    probe = {
        "model": found["id"],
        "messages": [{"role": "user", "content": "Count: one two three one two three one two"}],
        "max_tokens": 8,
        "temperature": 0,
    }
    speculation = _report(base, _ask(base, "/v1/chat/completions", probe))
    asd = speculation["asd"]
    rounds = speculation.get("num_spec_steps") or 0
    drafted = speculation.get("num_draft_tokens") or 0
    return Served(
        base_url=base,
        model=found["id"],
        root=str(found.get("root") or found["id"]),
        max_model_len=int(found.get("max_model_len") or 0),
        vllm_version=version,
        limits=_limits(asd),
        detailed="exception_trace" in asd,
        num_draft_tokens=round(drafted / rounds) if rounds else None,
    )


def _limits(asd: dict[str, Any]) -> RequestLimits:
    shadow = asd["mode"] == "shadow"

    def of(row: dict[str, Any]) -> RequestLimits:
        return RequestLimits(row["budget"], row["gate"], row["block_cap"], row["refill"], shadow)

    answer = asd["phases"]["answer"] if "phases" in asd else None
    return replace(of(asd), answer=answer and of(answer), guard=asd.get("guard") == "on")


def require_detailed(served: Served) -> None:
    """Refuse a server whose reports leave the single exceptions out.

    Raises:
        NotServed: It does.
    """
    if not served.detailed:
        raise NotServed(f"{served.base_url} reports only sums: start it with {_FIX}")


def _report(base: str, response: dict[str, Any]) -> dict[str, Any]:
    metrics = response.get("metrics") or {}
    speculation = metrics.get("speculative_decoding")
    if not isinstance(speculation, dict):
        raise NotServed(f"{base} reports nothing per request: start it with speculative decoding and {_FIX}")
    if "asd" not in speculation:
        raise NotServed(
            f'{base} runs without ASD: add "rejection_sample_method": "asd" to its --speculative-config '
            "(vllm-asd doctor says whether the plugin is there)"
        )
    return speculation


def _ask(base: str, path: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
    body = None if payload is None else json.dumps(payload).encode()
    try:
        with urllib.request.urlopen(keyed_request(base + path, body), timeout=_TIMEOUT_S) as response:
            answer = json.loads(response.read())
    except urllib.error.HTTPError as error:
        said = " ".join(error.read().decode(errors="replace").split())[:200]
        error.close()
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise NotServed(f"{base} asks for a key: give --api-key, or set VLLM_API_KEY") from None
        raise NotServed(f"{base}{path} answered {error.code}: is that a vLLM server? ({said})") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NotServed(
            f"no vLLM server answers at {base} ({reason}): start it, or correct the URL"
        ) from None
    if not isinstance(answer, dict):
        raise NotServed(f"{base}{path} answered no JSON object: is that a vLLM server?")
    return answer
