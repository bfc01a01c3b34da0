"""What the README shows can be pasted: its JSON parses, its keys are ours, its commands exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from vllm_asd import AsdConfig
from vllm_asd.cli import app
from vllm_asd.config import ANSWER_KEYS, RequestKeys, split_speculative_config
from vllm_asd.telemetry import prometheus

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def option_values(option: str) -> Iterator[Any]:
    """The JSON that follows an option in quotes, anywhere in the README's shell blocks."""
    for block in blocks("bash"):
        for value in re.findall(rf"{option} '(.*?)'", block, re.DOTALL):
            yield json.loads(value)


def table(first_header: str) -> list[list[str]]:
    """A table's rows, cells stripped of spaces and backticks."""
    _, _, behind = README.partition(f"| {first_header} |")
    rows = behind.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]


def test_is_short() -> None:
    assert len(README.splitlines()) < 250


def test_json_blocks_parse() -> None:
    parsed = [json.loads(block) for block in blocks("json")]
    assert parsed


def test_speculative_configs_ask_for_asd() -> None:
    configs = list(option_values("--speculative-config"))
    assert configs
    for given in configs:
        native, config = split_speculative_config(given)
        assert config is not None
        assert {"method", "num_speculative_tokens"} <= native.keys()


def test_request_bodies_ask_for_what_the_defaults_allow() -> None:
    bodies = list(option_values("-d"))
    wishes = [body["vllm_xargs"] for body in bodies]
    assert len(bodies) == 4
    for wish in wishes:
        AsdConfig().limits_for(wish)
    assert all(wishes)


def test_each_route_is_shown() -> None:
    routes = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    shown = "\n".join(blocks("bash"))
    assert all(route in shown for route in routes)


def test_knobs_are_the_settings() -> None:
    rows = {key: (default, per_request) for key, default, _, per_request in table("key")}
    assert rows.pop("rejection_sample_method") == ("-", "")
    # One row stands for the four keys of the answer, whose default is another key's value.
    assert rows.pop("asd_answer_...") == ("as above", "stricter")
    fields = {key: field for key, field in AsdConfig.model_fields.items() if key not in ANSWER_KEYS}
    assert rows.keys() == fields.keys()
    assert {key: json.loads(default) for key, (default, _) in rows.items()} == {
        key: field.default for key, field in fields.items()
    }
    assert {key for key, (_, per_request) in rows.items() if per_request} == (
        RequestKeys.model_fields.keys() - ANSWER_KEYS.keys()
    )


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = re.findall(r"^make ([a-z-]+)", "\n".join(blocks("bash")), re.MULTILINE)
    shown += re.findall(r"`make ([a-z-]+)`", README)
    assert {"demo", "serve", "test"} <= set(shown) <= targets


def test_subcommands_exist() -> None:
    offered = {command.name for command in app.registered_commands}
    shown = set(re.findall(r"vllm-asd ([a-z]+)\b", README)) - {"for"}
    assert "doctor" in shown <= offered


def test_metrics_exist() -> None:
    registry = CollectorRegistry()
    prometheus.Collectors(registry)
    exported = {metric.name for metric in prometheus.collect(registry)}
    shown = {name.removesuffix("_total") for name in re.findall(r"`(vllm_asd:\w+)`", README)}
    assert "vllm_asd:enabled" in shown <= exported


@pytest.mark.parametrize("source", blocks("python"))
def test_python_compiles(source: str) -> None:
    compile(source, "README.md", "exec")


def test_names_files_that_exist() -> None:
    paths = set(re.findall(r"`((?:vllm_asd|eval|configs|tests|docs|packaging)/[\w./-]*)`", README))
    assert all((ROOT / path).exists() for path in paths)
