"""The hosted workflow runs make targets that exist on the Pythons that are supported; the image is vLLM's."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from vllm_asd.versions import PYTHON_RELEASES, VLLM_RELEASES

ROOT = Path(__file__).resolve().parents[2]


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    return loaded


def test_the_matrix_is_every_supported_python() -> None:
    matrix = workflow()["jobs"]["check"]["strategy"]["matrix"]
    assert matrix["python"] == [".".join(map(str, release)) for release in PYTHON_RELEASES]


def test_it_runs_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    jobs = workflow()["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    named = {command.removeprefix("make ") for command in commands if command.startswith("make ")}
    assert named == {"check", "package", "docs"}
    assert named <= targets


def test_the_image_is_the_newest_supported_vllm() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"^FROM vllm/vllm-openai:v([\d.]+)$", dockerfile, re.MULTILINE)
    assert base.startswith(f"{VLLM_RELEASES[-1]}.")
    assert not re.search(r"^(ENTRYPOINT|CMD)", dockerfile, re.MULTILINE)


def test_the_image_gets_all_that_the_wheel_is_built_from() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"pyproject.toml", "vllm_asd", project["readme"], *project["license-files"]} <= names
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{name}" for name in names} <= set(ignored)


def test_issue_templates_are_forms() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= form.keys()
            ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
            assert len(ids) == len(set(ids)) > 1
