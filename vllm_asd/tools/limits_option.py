"""The option `--limits`: a file that calibrate froze, or the JSON of what a request may send."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_asd.config import ANSWER_KEYS, AsdConfig, AsdConfigError, RequestKeys, split_speculative_config
from vllm_asd.tools.json_object import LIMITS_EXAMPLE, read_object
from vllm_asd.tools.server_config import SPECULATION, read_server_config
from vllm_asd.tools.usage import BadUsage

LIMIT_KEYS = tuple(ANSWER_KEYS.values())


@dataclass(frozen=True)
class GivenLimits:
    """What `--limits` says.

    Attributes:
        keys: As `vllm_xargs` of a request.
        frozen: All of the file's ASD settings; None for JSON.
        path: The file; None for JSON.
        drafter: Its name, as far as the file tells.
    """

    keys: dict[str, Any]
    frozen: AsdConfig | None = None
    path: Path | None = None
    drafter: str | None = None


def read_limits(text: str) -> GivenLimits:
    """Read the option; nothing is asked of a server.

    Raises:
        BadUsage: Neither a file nor a JSON object, no limits in it, an unknown key or a bad value; one line.
    """
    if _is_path(text):
        return _frozen(Path(text))
    keys = read_object("--limits", text, LIMITS_EXAMPLE)
    try:
        RequestKeys.from_keys(keys)
    except AsdConfigError as error:
        raise BadUsage(f"--limits: {error}") from None
    return GivenLimits(keys)


def request_keys(config: AsdConfig) -> dict[str, Any]:
    """What a request sends to run under these settings: all limits, and what differs from the defaults."""
    per_phase = ANSWER_KEYS if config.asd_scope == "phases" else {}
    keys = config.model_dump(include={*LIMIT_KEYS, *per_phase})
    if config.asd_mode != "enforce":
        keys["asd_mode"] = config.asd_mode
    return {**keys, "asd_guard": "on"} if config.asd_guard == "on" else keys


def _is_path(text: str) -> bool:
    if text.lstrip().startswith(("{", "[")):
        return False
    if text.endswith((".yaml", ".yml", ".json")) or "/" in text:
        return True
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or a zero byte
        return False


def _frozen(path: Path) -> GivenLimits:
    speculation = read_server_config(path, "--limits").get(SPECULATION)
    try:
        asd = split_speculative_config(speculation)[1] if speculation else None
    except AsdConfigError as error:
        raise BadUsage(f"--limits: {path}: {error}") from None
    if asd is None or speculation is None:
        raise BadUsage(f'--limits: {path} has no {SPECULATION} with "rejection_sample_method": "asd"')
    drafter = _short(speculation.get("model") or speculation.get("method"))
    return GivenLimits(request_keys(asd), asd, path, drafter)


def _short(name: object) -> str | None:
    """The last part of a path or name: a report says nothing about this machine's folders."""
    return None if name is None else str(name).rstrip("/").rpartition("/")[2]
