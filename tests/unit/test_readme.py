"""What the README shows can be pasted, its figures are those of the recorded answers, and it stays short."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from vllm_asd import AsdConfig
from vllm_asd.cli import app
from vllm_asd.config import split_speculative_config
from vllm_asd.telemetry import prometheus
from vllm_asd.versions import PYTHON_RELEASES, VLLM_RELEASES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def option_values(option: str) -> Iterator[Any]:
    """The JSON that follows an option in quotes, anywhere in the README's shell blocks."""
    for block in blocks("bash"):
        for value in re.findall(rf"{option} \\?\s*'(.*?)'", block, re.DOTALL):
            yield json.loads(value)


def table(first_header: str) -> list[list[str]]:
    """A table's rows, cells stripped of spaces and backticks."""
    _, _, after = README.partition(f"| {first_header} |")
    rows = after.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]


def test_is_read_in_two_minutes() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []


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


def test_the_first_server_changes_no_output() -> None:
    (given,) = option_values("--speculative-config")
    _, config = split_speculative_config(given)
    assert config is not None
    assert config.asd_mode == "shadow"


def test_request_bodies_ask_for_what_the_defaults_allow() -> None:
    bodies = list(option_values("-d"))
    assert bodies
    for body in bodies:
        assert body["vllm_xargs"]
        AsdConfig().limits_for(body["vllm_xargs"])


def test_the_five_settings_have_their_defaults() -> None:
    rows = {key: json.loads(default) for key, default, _ in table("key")}
    assert len(rows) == 5
    assert rows == {key: AsdConfig.model_fields[key].default for key in rows}


def test_the_results_are_those_of_the_recorded_answers() -> None:
    """Tokens per target pass, intervals over prompts, exceptions and loops."""
    pytest.importorskip("numpy")
    from eval.frontier import readme

    rows = readme.rows_of(ROOT / "eval" / "reports" / "frontier")
    assert readme.table(rows) in README
    everything = rows[-1]
    ratio, looping = everything.ratio, everything.looping
    assert f"x{ratio.value:.2f} (95%: {ratio.low:.2f} to {ratio.high:.2f})" in README
    assert f"{everything.changed:.0%} of those answers differ" in README
    assert f"{looping[1]:.1%} of answers end in a loop, {looping[0]:.1%} under strict" in README


def test_the_audits_verdict_is_the_reports() -> None:
    report = json.loads((ROOT / "eval/reports/audit-smollm2-eagle3/report.json").read_text(encoding="utf-8"))
    text = json.dumps(report)
    assert "undecided" in text
    assert "Undecided: 150 usable audit items" in README
    page = (ROOT / "eval/reports/audit-smollm2-eagle3/report.md").read_text(encoding="utf-8")
    (items, needed) = re.findall(r"(\d+) items, \d+ lost.*?about (\d+) items would rule it out", page)[0]
    assert (int(items), round(int(needed), -2)) == (150, 1400)


def test_supported_versions() -> None:
    ((_, vllm, python, *_),) = table("vllm-asd")
    assert vllm == ", ".join(VLLM_RELEASES)
    first, last = (".".join(map(str, PYTHON_RELEASES[index])) for index in (0, -1))
    assert python == f"{first} - {last}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = re.findall(r"^make ([a-z-]+)", "\n".join(blocks("bash")), re.MULTILINE)
    shown += re.findall(r"`make ([a-z-]+)`", README)
    assert {"demo", "serve", "test"} <= set(shown) <= targets


def test_subcommands_exist() -> None:
    offered = {command.name for command in app.registered_commands}
    shown = set(re.findall(r"vllm-asd ([a-z]+)\b", README)) - {"for", "can"}
    assert "doctor" in shown <= offered


def test_metrics_exist() -> None:
    registry = CollectorRegistry()
    prometheus.Collectors(registry)
    exported = {metric.name for metric in prometheus.collect(registry)}
    shown = {name.removesuffix("_total") for name in re.findall(r"`(vllm_asd:\w+)`", README)}
    assert "vllm_asd:enabled" in shown <= exported


def test_names_files_that_exist() -> None:
    paths = set(re.findall(r"`((?:vllm_asd|eval|configs|tests|docs|packaging)/[\w./-]*)`", README))
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README)}
    local = {link for link in links if not link.startswith("https://")}
    assert local
    assert all((ROOT / path).exists() for path in paths | local)
