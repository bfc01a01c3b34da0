"""A transcript as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import math
from html import escape

from vllm_asd.telemetry.transcript import Piece, Relaxation, Transcript, split_core, visible

_STYLE = """
:root { --ink: #1d2129; --dim: #667085; --paper: #fcfcfa; --line: #e4e4de; --hot: 225, 87, 51; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e1; --dim: #98a2b3; --paper: #16181d; --line: #2c3038; --hot: 255, 122, 84; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.7 system-ui, sans-serif;
  overflow-x: clip; }
main { max-width: 46rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.15rem; margin: 0 0 1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem 1.5rem;
  margin: 0 0 1.5rem; }
dt { color: var(--dim); font-size: .8rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
figure { margin: 0 0 1.5rem; } figcaption { color: var(--dim); font-size: .8rem; }
svg { display: block; width: 100%; height: 72px; overflow: visible; }
.spent { fill: none; stroke: rgb(var(--hot)); stroke-width: 2; vector-effect: non-scaling-stroke; }
.limit { stroke: var(--dim); stroke-dasharray: 4 4; vector-effect: non-scaling-stroke; }
.axis { stroke: var(--line); vector-effect: non-scaling-stroke; }
.text { position: relative; white-space: pre-wrap; overflow-wrap: anywhere; border-top: 1px solid var(--line);
  padding-top: 1.25rem; }
mark { color: inherit; border-bottom: 2px solid rgb(var(--hot)); border-radius: 2px;
  cursor: help; background: rgba(var(--hot), var(--share)); }
mark:focus-visible { outline: 2px solid rgb(var(--hot)); outline-offset: 2px; }
/* Below its line, at the text's left edge: never cut off, whatever the window's width. */
.tip { display: none; position: absolute; left: 0; margin-top: .2rem; z-index: 1; max-width: 100%;
  padding: .5rem .75rem; border-radius: 6px;
  background: var(--ink); color: var(--paper);
  font-size: .85rem; line-height: 1.5; white-space: pre-wrap; }
mark:hover .tip, mark:focus .tip { display: block; }
.tip b { font-family: ui-monospace, monospace; }
.refused { border-left: 3px double rgb(var(--hot)); margin-left: 1px; padding-left: 1px; }
.key { color: var(--dim); font-size: .8rem; margin-top: 2rem; }
.key i { display: inline-block; width: 6rem; height: .7rem; margin: 0 .4rem; border-radius: 2px;
  background: linear-gradient(90deg, rgba(var(--hot), .08), rgba(var(--hot), .65)); }
"""


def render(transcript: Transcript) -> str:
    """The page."""
    facts = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
        for label, value in [*transcript.summary(), ("gate", _limits(transcript))]
    )
    exhausted = transcript.report.get("exhausted_at_token")
    body = "".join(
        _piece(piece, transcript, position == exhausted) for position, piece in enumerate(transcript.pieces)
    )
    title = f"What ASD relaxed: {escape(transcript.model)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f"<body><main><h1>{title}</h1><dl>{facts}</dl>{_chart(transcript)}"
        f'<div class="text">{body}</div>{_key(transcript)}</main></body></html>\n'
    )


def _limits(transcript: Transcript) -> str:
    return f"{transcript.report['gate']:g}, at most {transcript.report['block_cap']} per block"


def _piece(piece: Piece, transcript: Transcript, refused: bool) -> str:
    text = escape(piece.text)
    if piece.relaxation is not None:
        before, core, after = split_core(piece.text)
        text = escape(before) + _mark(escape(core), piece.relaxation, transcript) + escape(after)
    return (
        f'<span class="refused" title="first token that the budget refused">{text}</span>'
        if refused
        else text
    )


def _mark(text: str, relaxation: Relaxation, transcript: Transcript) -> str:
    share = relaxation.regret / transcript.max_regret if transcript.max_regret else 0.0
    tip = f"{transcript.other}: <b>{escape(visible(relaxation.other_text))}</b>"
    if relaxation.target_logprob is not None and relaxation.logprob is not None:
        likely, kept = math.exp(relaxation.target_logprob), math.exp(relaxation.logprob)
        tip += f"\np {likely:.3f} against {kept:.3f} for the kept token"
    tip += f"\nregret {relaxation.regret:.3f} nats, token {relaxation.position}"
    style = f"--share:{0.08 + 0.57 * share:.2f}"
    return f'<mark tabindex="0" style="{style}">{text}<span class="tip">{tip}</span></mark>'


def _chart(transcript: Transcript) -> str:
    """The budget over the response: a step up at each exception."""
    budget, length = transcript.report["budget"], len(transcript.pieces)
    if not transcript.relaxations or budget <= 0:
        return ""
    top, spent, path = max(budget, transcript.report["regret"]), 0.0, "M0 100"
    for relaxation in transcript.relaxations:
        path += f"H{1000 * relaxation.position / length:.1f}"
        spent += relaxation.regret
        path += f"V{100 - 100 * spent / top:.1f}"
    limit = 100 - 100 * budget / top
    return (
        '<figure><svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="Regret spent">'
        '<path class="axis" d="M0 100H1000"/>'
        f'<path class="limit" d="M0 {limit:.1f}H1000"/><path class="spent" d="{path}H1000"/></svg>'
        f"<figcaption>Regret spent over {length} tokens; dashed: the budget, {budget:g} nats</figcaption>"
        "</figure>"
    )


def _key(transcript: Transcript) -> str:
    return (
        f'<p class="key">Marked: kept though the target would have said something else. Regret 0 <i></i> '
        f"{transcript.max_regret:.2f} nats. Hover, or move with Tab.</p>"
    )
