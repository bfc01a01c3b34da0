"""The report for a reader: what was gained, what got worse, and how far to trust it."""

from vllm_asd.tools.bench.markdown.document import to_markdown

__all__ = ["to_markdown"]
