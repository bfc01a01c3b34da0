"""The page on the report names every field that a response can have."""

from pathlib import Path

from vllm_asd.config import RequestLimits
from vllm_asd.policy import StopReason
from vllm_asd.telemetry.request_report import new_report

PAGE = Path(__file__).resolve().parents[2] / "docs" / "report.md"


def test_every_field_is_explained() -> None:
    """And every reason why a block can end."""
    page = PAGE.read_text()
    payload = new_report(RequestLimits(1.0, 1.0, 1), detailed=True)
    names = [*payload, *(reason.name.lower() for reason in StopReason)]
    assert [name for name in names if f"`{name}`" not in page] == []
