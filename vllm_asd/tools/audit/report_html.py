"""The report as one HTML page that needs nothing beside it: the Markdown rendered, the pictures inside."""

import base64
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from vllm_asd.tools.audit import plots
from vllm_asd.tools.audit.report_schema import AuditReport

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; }
body { margin: 0 auto; max-width: 1100px; padding: 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
h1 + p { border-left: 6px solid; padding: .6rem 1rem; background: #f6f8fa; }
.non-inferior h1 + p { border-color: #0b6e99; } .undecided h1 + p { border-color: #b7791f; }
.inferior h1 + p { border-color: #b3261e; }
table { border-collapse: collapse; font-size: .82rem; display: block; overflow-x: auto; margin: 1rem 0; }
th, td { border-bottom: 1px solid #d8dee4; padding: .3rem .55rem; vertical-align: top; }
th { background: #f6f8fa; } td { font-variant-numeric: tabular-nums; }
img { max-width: 100%; } pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; font-size: .8rem; }
"""


def html(report: AuditReport, markdown: str, folder: Path) -> str:
    """Render the page.

    Args:
        report: For the verdict's colour.
        markdown: The report as Markdown.
        folder: Where the pictures lie.
    """
    # Raw HTML stays off: task names and provenance come from outside.
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    for picture in (plots.QUALITY, plots.GAIN, plots.REGRET):
        data = base64.b64encode((folder / picture).read_bytes()).decode()
        body = body.replace(f'src="{picture}"', f'src="data:image/svg+xml;base64,{data}"')
    title = escape(f"Audit: {report.overall.verdict}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style></head>\n"
        f'<body class="{report.overall.verdict}">\n{body}</body>\n</html>\n'
    )
