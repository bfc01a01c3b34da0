"""No report field, metric, label, log line or refusal changes unseen; the files lie in tests/unit/golden."""

import pytest

pytest.importorskip("vllm")

from tests.unit.golden_outputs import FOLDER, render
from vllm_asd.config import RequestKeys


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return render()


def test_every_file_has_its_output(rendered: dict[str, str]) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(rendered)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_the_output_is_what_was_written_down(name: str, rendered: dict[str, str]) -> None:
    """After a wanted change: python -m tests.unit.golden_outputs."""
    assert rendered[name] == (FOLDER / name).read_text(encoding="utf-8")


def test_every_key_of_a_request_is_refused_somewhere(rendered: dict[str, str]) -> None:
    assert [key for key in RequestKeys.model_fields if f"'{key}'" not in rendered["refusals.json"]] == []
