"""Write the pages of docs/ that are made from the code: settings, metrics, options of the commands.

    python scripts/generate_docs.py

A test compares the committed pages with what this makes.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from prometheus_client import CollectorRegistry

from vllm_asd import cli
from vllm_asd.config import ANSWER_KEYS, AsdConfig, RequestKeys
from vllm_asd.telemetry import prometheus
from vllm_asd.telemetry.counters import Counter

DOCS = Path(__file__).resolve().parents[1] / "docs"
TEMPLATES = Path(__file__).resolve().parent / "docs_templates"


def configuration() -> str:
    """docs/configuration.md: each key of `--speculative-config`, from the pydantic model."""
    lines = ["| key | default | allowed | a request may send | meaning |\n", "|---|---|---|---|---|\n"]
    for key, field in AsdConfig.model_fields.items():
        words = words_of(field.annotation)
        value = json.dumps(getattr(field.default, "value", field.default))
        default = f"that of `{ANSWER_KEYS[key]}`" if key in ANSWER_KEYS else f"`{value}`"
        cells = (f"`{key}`", default, _allowed(key, words), _sendable(key, words), field.description)
        lines.append(f"| {' | '.join(map(str, cells))} |\n")
    return _fill("configuration.md", "".join(lines))


def words_of(annotation: Any) -> tuple[str, ...]:
    """The words that a key takes; none for a number."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(member.value for member in annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _allowed(key: str, words: tuple[str, ...]) -> str:
    if words:
        return ", ".join(f'`"{word}"`' for word in words)
    return "integer, 0 to 128" if key.endswith("block_cap") else "number >= 0"


def _sendable(key: str, words: tuple[str, ...]) -> str:
    """What a request may say beside the server's own value."""
    if key not in RequestKeys.model_fields:
        return "-"
    if not words:
        return "a smaller value"
    stricter = [word for word in words for other in words if word != other and _accepts(key, other, word)]
    return ", ".join(f'`"{word}"`' for word in stricter)


def _accepts(key: str, server: str, asked: str) -> bool:
    """Whether a server with one word lets a request have the other."""
    try:
        AsdConfig.from_keys({key: server}).settings_for({key: asked})
    except ValueError:
        return False
    return True


def metrics() -> str:
    """docs/metrics.md: each series of `/metrics`, from the collectors and the table of counters."""
    registry = CollectorRegistry()
    # Series show their labels once they have values; any will do.
    enable: Callable[..., None] = prometheus.Collectors(registry).enable
    enable(**dict.fromkeys(inspect.signature(enable).parameters, "0"))
    lines = ["| metric | type | labels | meaning |\n", "|---|---|---|---|\n"]
    units = {f"{prometheus.PREFIX}{counter.label}": counter.unit for counter in Counter}
    for metric in prometheus.collect(registry):
        name = metric.name + ("_total" if metric.type == "counter" else "")
        kind = f"{metric.type}, {units[metric.name]}" if metric.name in units else metric.type
        labels = ", ".join(f"`{label}`" for label in metric.samples[0].labels if label != "le")
        lines.append(f"| `{name}` | {kind} | {labels} | {metric.documentation} |\n")
    return _fill("metrics.md", "".join(lines))


def options() -> str:
    """docs/options.md: each option of each command, from the command line's own definitions."""
    sections = []
    for name in cli.SUBCOMMANDS:
        command = typer.main.get_command(importlib.import_module(f"vllm_asd.cli.{name}").app)
        summary = _one_line((command.help or "").split("\n\n")[0])
        rows = "".join(_option_rows(command))
        sections.append(f"## {name}\n\n{summary}\n\n| option | default | meaning |\n|---|---|---|\n{rows}")
    return _fill("options.md", "\n".join(sections))


def _option_rows(command: Any) -> Iterator[str]:
    for parameter in command.params:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        if parameter.metavar:
            names += f" `{parameter.metavar}`".replace("|", " or ")
        if parameter.param_type_name == "argument":
            names = f"`{(parameter.metavar or parameter.name).upper()}`"
        plain = parameter.default is None or parameter.default is False or callable(parameter.default)
        default = "" if plain else f"`{_plain(parameter.default)}`"
        text = _one_line(getattr(parameter, "help", None) or "").replace("|", "\\|")
        yield f"| {names} | {default} | {text} |\n"


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fill(name: str, generated: str) -> str:
    template = (TEMPLATES / name).read_text(encoding="utf-8")
    return template.replace("{generated}", generated.rstrip("\n"))


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "metrics.md": metrics,
    "options.md": options,
}


def main() -> int:
    """Write the pages that changed, and name them."""
    for name, render in PAGES.items():
        page, text = DOCS / name, render()
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
