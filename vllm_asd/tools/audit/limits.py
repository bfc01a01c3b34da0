"""Which limits the ASD arm runs under, and whether this server runs them as they were frozen."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vllm_asd.config import (
    ANSWER_KEYS,
    AsdConfig,
    RequestKeys,
    RequestLimits,
    split_speculative_config,
)
from vllm_asd.tools.calibrate.freeze import SPECULATION, evidence_path
from vllm_asd.tools.json_object import LIMITS_EXAMPLE, SPECULATION_EXAMPLE, read_object
from vllm_asd.tools.server.keyed_request import keyed_request
from vllm_asd.tools.server.served import Served

_TIMEOUT_S = 10.0
_LIMITS = tuple(ANSWER_KEYS.values())
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


def audited_limits(served: Served, config: Path | None, limits: str | None) -> Audited:
    """The limits of a frozen file, of JSON, or the server's own.

    Args:
        served: The server.
        config: A file for `vllm serve --config`, such as calibrate writes.
        limits: JSON of the keys that a request may send.

    Raises:
        ValueError: Unreadable, laxer than the server's, or priced otherwise; one line.
        OSError: The file can't be read.
    """
    if served.limits.shadow:
        raise ValueError(f'{served.base_url} only looks: start it with "asd_mode": "enforce"')
    if config is not None and limits is not None:
        raise ValueError("give --config or --limits, not both")
    if config is not None:
        return _of_config(served, config)
    if limits is not None:
        return Audited(_within(served, read_object("--limits", limits, LIMITS_EXAMPLE)), None, None, ())
    return Audited(_as_keys(_config_of(served)), None, None, ("The limits are the server's own.",))


def _of_config(served: Served, path: Path) -> Audited:
    try:
        arguments = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    given = arguments if isinstance(arguments, dict) else {}
    speculation = given.get(SPECULATION, given.get(SPECULATION.replace("-", "_")))
    if isinstance(speculation, str):
        speculation = read_object(f"{SPECULATION} in {path}", speculation, SPECULATION_EXAMPLE)
    _, asd = split_speculative_config(speculation) if isinstance(speculation, Mapping) else ({}, None)
    if asd is None or not isinstance(speculation, Mapping):
        raise ValueError(f'{path} has no {SPECULATION} with "rejection_sample_method": "asd"')
    if served.limits.guard and asd.asd_guard == "off":
        raise ValueError(f"the server runs asd_guard='on' and {path.name} has 'off': start it with that")
    calibrated, notes = _calibration(path)
    return Audited(
        xargs=_within(served, _as_keys(asd)),
        drafter=_short(speculation.get("model") or speculation.get("method")),
        calibrated=calibrated,
        notes=(*notes, *_server_only(served, asd)),
    )


def _as_keys(config: AsdConfig) -> dict[str, Any]:
    """What each request sends: all limits, and what differs from a server's defaults."""
    per_phase = ANSWER_KEYS if config.asd_scope == "phases" else {}
    keys = config.model_dump(include={*_LIMITS, *per_phase})
    if config.asd_mode != "enforce":
        keys["asd_mode"] = config.asd_mode
    return {**keys, "asd_guard": "on"} if config.asd_guard == "on" else keys


def _config_of(served: Served) -> AsdConfig:
    """The server's own settings, as far as a request may send them."""
    limits = served.limits
    settings: dict[str, Any] = dict(zip(_LIMITS, _values(limits), strict=True))
    if limits.answer is not None:
        settings |= {"asd_scope": "phases", **dict(zip(ANSWER_KEYS, _values(limits.answer), strict=True))}
    return AsdConfig(**settings, asd_guard="on" if limits.guard else "off")


def _values(limits: RequestLimits) -> tuple[float, float, int, float]:
    return limits.budget, limits.gate, limits.block_cap, limits.refill


def _within(served: Served, keys: dict[str, Any]) -> dict[str, Any]:
    """The keys, every limit filled in; AsdConfigError, a ValueError, names one that is laxer."""
    unknown = [key for key in keys if key not in RequestKeys.model_fields]
    if unknown:
        raise ValueError(f"{unknown[0]} is no limit; --limits takes: {', '.join(RequestKeys.model_fields)}")
    return _as_keys(_config_of(served).settings_for(keys))


def _calibration(config: Path) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    path = evidence_path(config)
    if not path.is_file():
        note = f"{config.name} comes without {path.name}: whether calibration saw these prompts is not known."
        return None, (note,)
    evidence = read_object(path, path.read_text(encoding="utf-8"), "calibrate anew")
    prompts = evidence.get("prompts")
    if not isinstance(prompts, list):
        raise ValueError(f"{path} has no list `prompts` of prompt digests: calibrate anew")
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


def _short(name: object) -> str | None:
    """The last part of a path or name: a report says nothing about this machine's folders."""
    return None if name is None else str(name).rstrip("/").rpartition("/")[2]
