"""Worker: the step's report rides on the step's output, which already waits for the sampled tokens."""

from __future__ import annotations

from typing import Any

from vllm_asd.telemetry.step_report import StepBlocks, StepReport

ATTRIBUTE = "asd_blocks"


def send(output: Any, report: StepReport) -> Any:
    """Attach a report to what the runner returns.

    Args:
        output: ``ModelRunnerOutput`` (its tokens are on the host, so the report's copy has ended), or
            ``AsyncModelRunnerOutput``, whose ``get_output`` waits in another thread; the report waits there.
        report: The step's report, its copy under way.
    """
    if hasattr(output, "get_output"):
        original = output.get_output

        def get_output() -> Any:
            return _attach(original(), report)

        output.get_output = get_output
        return output
    return _attach(output, report)


def _attach(output: Any, report: StepReport) -> Any:
    setattr(output, ATTRIBUTE, report.resolve())
    return output


def received(output: Any) -> StepBlocks | None:
    """Read the report of a step's output; None when there is none."""
    blocks: StepBlocks | None = getattr(output, ATTRIBUTE, None)
    return blocks
