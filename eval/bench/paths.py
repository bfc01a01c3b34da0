"""Results without the folders of the machine they were made on."""

import re
from typing import Any

_FOLDERS = re.compile(r"/(?:[\w.+~-]+/)+([\w.+~-]+/[\w.+~-]+)")


def without_folders(value: Any) -> Any:
    """The same plain value; of each absolute path in a text, its last two parts are left."""
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    return _FOLDERS.sub(r"\1", value) if isinstance(value, str) else value
