"""The Grafana files: every query names metrics that exist, every metric has its place."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from vllm_asd.telemetry.prometheus import Collectors

GRAFANA = Path(__file__).resolve().parents[2] / "configs" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "vllm_asd.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"] for variable in DASHBOARD["templating"]["list"]}


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def exported() -> set[str]:
    registry = CollectorRegistry()
    Collectors(registry).enable("m", 0)
    return {sample.name for metric in registry.collect() for sample in metric.samples}


def test_every_metric_of_ours_exists() -> None:
    named = {name for text in expressions() for name in re.findall(r"vllm_asd:\w+", text)}
    assert named <= exported()


def test_every_metric_of_ours_is_on_a_panel() -> None:
    named = {name for text in expressions() for name in re.findall(r"vllm_asd:\w+", text)}
    assert {name for name in exported() if not name.endswith("_created")} == named


@pytest.mark.parametrize("expression", expressions())
def test_queries_select_by_vllms_own_variables(expression: str) -> None:
    assert set(re.findall(r"\$(\w+)", expression)) <= VARIABLES | {"__rate_interval"}
    selectors = re.findall(r"\{([^}]*)\}", expression)
    assert selectors
    assert all(f'{name}=~"${name}"' in s for s in selectors for name in VARIABLES - {"datasource"})


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_compose_mounts_files_that_are_there() -> None:
    services = yaml.safe_load((GRAFANA / "compose.yaml").read_text())["services"]
    for service in services.values():
        for volume in service["volumes"]:
            assert (GRAFANA / volume.split(":")[0]).exists()


def test_grafana_and_prometheus_agree_on_the_scrape_interval() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())
    scrape = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
    assert source["datasources"][0]["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
