"""What mkdocs does not do itself: links from a page of docs/ to a file of the checkout outside of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)#\s]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn such a link into its text and the file's path, since the site does not hold the file.

    Raises:
        FileNotFoundError: The checkout has no such file.
    """

    def spell_out(link: re.Match[str]) -> str:
        text, path = link.groups()
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {path}, which does not exist")
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(spell_out, markdown)
