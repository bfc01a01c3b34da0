"""The options that had another name before: the only place that knows the old ones."""

RENAMED: dict[str, dict[str, str]] = {
    "audit": {"--config": "--limits", "--limit": "--prompts", "--model": "--served-model"},
    "bench": {"--config": "--server-config", "--prompts": "--requests"},
    "calibrate": {"--config": "--server-config"},
    "explain": {"--xargs": "--limits", "--model": "--served-model"},
}


def new_name(command: str, option: str | None) -> str | None:
    """The line that names the new option; None where this never was one of that command."""
    new = RENAMED.get(command, {}).get(option or "")
    return None if new is None else f"{option} is now {new}: give {new} in its place"
