"""Read a `vllm serve --config` file: the one reader of the commands that take one."""

from pathlib import Path
from typing import Any

import yaml

from vllm_asd.tools.json_object import SPECULATION_EXAMPLE, read_object, read_text
from vllm_asd.tools.usage import BadUsage

SPECULATION = "speculative-config"


def read_server_config(path: Path, option: str = "--server-config") -> dict[str, Any]:
    """The file's arguments, with dashes; `speculative-config` is a dictionary, if it is there.

    Args:
        path: The YAML file.
        option: Who names it, for the message.

    Raises:
        BadUsage: Not readable, no YAML mapping, or `speculative-config` is no mapping; one line.
    """
    text = read_text(option, path)
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadUsage(f"{option}: {path} is no YAML ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(loaded, dict):
        raise BadUsage(f"{option}: {path} holds no mapping of `vllm serve` options to values")
    arguments = {str(key).replace("_", "-"): value for key, value in loaded.items()}
    speculation = arguments.get(SPECULATION)
    if isinstance(speculation, str):
        arguments[SPECULATION] = read_object(f"{SPECULATION} in {path}", speculation, SPECULATION_EXAMPLE)
    elif isinstance(speculation, dict):
        arguments[SPECULATION] = {str(key): value for key, value in speculation.items()}
    elif speculation is not None:
        raise BadUsage(f"{option}: {SPECULATION} in {path} is no mapping: {SPECULATION_EXAMPLE}")
    return arguments
