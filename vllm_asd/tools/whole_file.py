"""Write a file that readers, and a run that goes on after a kill, never see in part."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Put the text there at once, in place of what was there."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
