"""Which limits the ASD arm runs under, and whether this server runs them as they were frozen."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_asd.config import ANSWER_KEYS, AsdConfig, RequestLimits
from vllm_asd.tools.calibrate.freeze import evidence_path
from vllm_asd.tools.json_object import read_object, read_text
from vllm_asd.tools.limits_option import LIMIT_KEYS, GivenLimits, request_keys
from vllm_asd.tools.server.keyed_request import keyed_request
from vllm_asd.tools.server.served import Served
from vllm_asd.tools.usage import BadUsage

_TIMEOUT_S = 10.0
# What a request can't send: the server must run it as it was frozen.
_SERVER_ONLY = ("asd_pricing", "asd_scope", "asd_protect")


@dataclass(frozen=True)
class Audited:
    """What is audited.

    Attributes:
        xargs: The limits, as `vllm_xargs` of each request.
        drafter: Its name, as far as the frozen file tells.
        calibrated: Digests of the prompts that the limits were calibrated on; None if not known.
        notes: What the reader of the report should know about all this.
    """

    xargs: dict[str, Any]
    drafter: str | None
    calibrated: frozenset[str] | None
    notes: tuple[str, ...]


def audited_limits(served: Served, given: GivenLimits | None) -> Audited:
    """The limits that `--limits` gives, or the server's own.

    Args:
        served: The server.
        given: The option, read; None takes the server's own.

    Raises:
        ValueError: Laxer than the server's, or priced otherwise; one line.
    """
    if served.limits.shadow:
        raise ValueError(f'{served.base_url} only looks: start it with "asd_mode": "enforce"')
    if given is None:
        own = request_keys(_config_of(served))
        return Audited(own, None, None, ("The limits are the server's own.",))
    keys = request_keys(_config_of(served).settings_for(given.keys))
    if given.frozen is None or given.path is None:
        return Audited(keys, None, None, ())
    if served.limits.guard and given.frozen.asd_guard == "off":
        raise ValueError(
            f"the server runs asd_guard='on' and {given.path.name} has 'off': start it with that"
        )
    calibrated, notes = calibration(given.path)
    return Audited(keys, given.drafter, calibrated, (*notes, *_server_only(served, given.frozen)))


def _config_of(served: Served) -> AsdConfig:
    """The server's own settings, as far as a request may send them."""
    limits = served.limits
    settings: dict[str, Any] = dict(zip(LIMIT_KEYS, _values(limits), strict=True))
    if limits.answer is not None:
        settings |= {"asd_scope": "phases", **dict(zip(ANSWER_KEYS, _values(limits.answer), strict=True))}
    return AsdConfig(**settings, asd_guard="on" if limits.guard else "off")


def _values(limits: RequestLimits) -> tuple[float, float, int, float]:
    return limits.budget, limits.gate, limits.block_cap, limits.refill


def calibration(config: Path) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """Digests of the prompts that a frozen file was calibrated on, or None and a note.

    Raises:
        BadUsage: The file beside it can't be read.
    """
    path = evidence_path(config)
    if not path.is_file():
        note = f"{config.name} comes without {path.name}: whether calibration saw these prompts is not known."
        return None, (note,)
    evidence = read_object(path, read_text("--limits", path), "calibrate again")
    prompts = evidence.get("prompts")
    if not isinstance(prompts, list):
        raise BadUsage(f"{path} has no list `prompts` of prompt digests: calibrate again")
    return frozenset(str(digest) for digest in prompts), ()


def _server_only(served: Served, frozen: AsdConfig) -> tuple[str, ...]:
    """Refuse a server that runs other pricing, scope or protection; a note where it does not say."""
    runs = _server_settings(served)
    for key in _SERVER_ONLY if runs else ():
        wanted = getattr(frozen, key)
        if runs and runs.get(key, wanted) != wanted:
            raise ValueError(
                f"the server runs {key}={runs[key]!r} and {wanted!r} was frozen: start it with that"
            )
    if runs:
        return ()
    said = ", ".join(f"{key}={getattr(frozen, key)}" for key in _SERVER_ONLY)
    return (f"Taken on trust: the server runs {said}. Started with VLLM_PLUGINS=asd it would say.",)


def _server_settings(served: Served) -> dict[str, Any] | None:
    url = f"{served.base_url}/plugins/asd/limits"
    try:
        with urllib.request.urlopen(keyed_request(url), timeout=_TIMEOUT_S) as response:
            found = json.loads(response.read())
    except urllib.error.HTTPError as error:
        error.close()  # without VLLM_PLUGINS there is no such route
        return None
    return found if isinstance(found, dict) else None
