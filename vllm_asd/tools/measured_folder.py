"""A folder of answers of SmolLM2-135M-Instruct: begun, or gone on with under the same settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_asd.tools.data_option import DataFile, read_data
from vllm_asd.tools.settings_file import keep_settings


def begin(
    module: str, data: Sequence[str], output: Path, speculation: Mapping[str, Any], max_tokens: int
) -> tuple[list[DataFile], dict[str, Any]]:
    """Read `--data` and note the settings in the folder.

    Args:
        module: What runs, named in front of a refusal.
        data: The option's entries.
        output: The folder; made if it isn't there.
        speculation: What vLLM is told; of the drafter's folder only the name is noted.
        max_tokens: Longest answer.

    Returns:
        The files, and the settings as they are noted.

    Raises:
        SystemExit: Wrong data, or a folder that was begun with other settings; one line.
    """
    settings = {
        "target": "SmolLM2-135M-Instruct",
        "speculation": {**speculation, "model": Path(speculation["model"]).name},
        "max_tokens": max_tokens,
    }
    try:
        files = read_data(data)
        keep_settings(output / "settings.json", settings)
    except ValueError as error:
        raise SystemExit(f"{module}: {error}") from None
    return files, settings
