"""The pages of docs/: what they show can be pasted, generated ones are current, links lead somewhere."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_asd import AsdConfig
from vllm_asd.config import split_speculative_config

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
SHOWN = [ROOT / "README.md", *PAGES]
TEMPLATES = ROOT / "scripts" / "docs_templates"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def shell_of(page: Path) -> str:
    """Its shell blocks, and the indented ones, which some pages use."""
    text = page.read_text(encoding="utf-8")
    indented = re.findall(r"^(?: {4}.*\n)+", text, re.MULTILINE)
    return "\n".join([*blocks(page, "bash"), *indented])


def option_values(option: str) -> Iterator[Any]:
    """Page and JSON text of an option in quotes, on every page."""
    for page in SHOWN:
        for value in re.findall(rf"{option}[ =]\\?\s*'(\{{.*?\}})'(?=\s|$)", shell_of(page), re.DOTALL):
            yield pytest.param(value, id=f"{page.name}: {value[:40]!r}")


@pytest.mark.parametrize("value", list(option_values("--speculative-config")))
def test_each_speculative_config_is_one_that_the_plugin_takes(value: str) -> None:
    native, _ = split_speculative_config(json.loads(value))
    assert {"method", "num_speculative_tokens"} <= native.keys()


@pytest.mark.parametrize("value", list(option_values("-d")))
def test_each_request_body_is_one_that_the_defaults_allow(value: str) -> None:
    body = json.loads(value)
    AsdConfig().limits_for(body.get("vllm_xargs"))


def json_blocks() -> Iterator[Any]:
    for page in SHOWN:
        yield from (pytest.param(block, id=page.name) for block in blocks(page, "json"))


@pytest.mark.parametrize("block", list(json_blocks()))
def test_json_blocks_parse(block: str) -> None:
    json.loads(block)


def test_heredocs_of_yaml_are_serve_files_that_the_plugin_takes() -> None:
    found = [
        text for page in PAGES for text in re.findall(r"<<'YAML'\n(.*?)\nYAML", shell_of(page), re.DOTALL)
    ]
    assert found
    for text in found:
        _, config = split_speculative_config(yaml.safe_load(text)["speculative-config"])
        assert config is not None


def test_every_route_is_shown() -> None:
    shown = shell_of(DOCS / "requests.md")
    routes = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    assert all(route in shown for route in routes)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles(page: Path) -> None:
    for source in blocks(page, "python"):
        compile(source, page.name, "exec")


def test_the_example_of_the_rule_runs() -> None:
    pytest.importorskip("torch")
    (source,) = blocks(DOCS / "concepts.md", "python")
    assert source.count("assert ") == 3
    exec(compile(source, "concepts.md", "exec"), {})


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_no_unknown_key_is_named(page: Path) -> None:
    named = set(re.findall(r"`\"?(asd_[a-z_]+)\b", page.read_text(encoding="utf-8")))
    assert {name for name in named if not name.endswith("_")} <= AsdConfig.model_fields.keys()


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://")):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {_anchor(title) for title in titles}, link


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_opens_with_what_it_is_for(page: Path) -> None:
    title, _, rest = page.read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ")
    first = rest.split("\n\n")[0]
    assert first[0].isalpha() or first[0] in '`"*'
    assert len(first.split()) >= 8


def test_the_site_has_only_pages_that_exist() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.findall(r"^\s*- (?:.+: )?([a-z_]+\.md)$", site, re.MULTILINE)
    assert len(nav) == len(set(nav)) > 20
    assert [name for name in nav if not (DOCS / name).exists()] == []


def test_generated_pages_are_current() -> None:
    """Rewrite them with `python scripts/generate_docs.py`."""
    import generate_docs

    stale = [
        name
        for name, render in generate_docs.PAGES.items()
        if (DOCS / name).read_text(encoding="utf-8") != render()
    ]
    assert stale == []


def test_the_page_on_settings_explains_every_word() -> None:
    import generate_docs

    text = (TEMPLATES / "configuration.md").read_text(encoding="utf-8")
    for key, field in AsdConfig.model_fields.items():
        words = generate_docs.words_of(field.annotation)
        assert not words or f"`{key}`" in text, key
        assert [word for word in words if f'`"{word}"`' not in text] == [], key
