"""Worker, both runners: what their seams have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from vllm_asd.config import AsdConfig
from vllm_asd.telemetry.step_report import StepReport
from vllm_asd.upstream import way_back, wire
from vllm_asd.upstream.rank_fault import end_if_silent
from vllm_asd.upstream.think_markers import think_markers
from vllm_asd.verification import DraftShape, Verifier


def make_verifier(runner: Any, vllm_config: Any, config: AsdConfig, capacity: int) -> Verifier:
    """Allocate the verifier that serves a runner.

    Raises:
        AsdConfigError: ``asd_scope`` is not "all" and vLLM knows no think tokens.
    """
    markers = None if config.asd_scope == "all" else think_markers(vllm_config, config.asd_scope)
    shape = DraftShape(
        max_num_draft_tokens=vllm_config.speculative_config.num_speculative_tokens,
        vocab_size=vllm_config.model_config.get_vocab_size(),
    )
    return Verifier(config, runner.device, capacity, shape, markers, wire.wants_detail(vllm_config))


class Seam(ABC):
    """What a runner needs between its steps."""

    def __init__(self, verifier: Verifier) -> None:
        """Hold the verifier that serves the runner."""
        self.verifier = verifier
        self._report: StepReport | None = None

    @abstractmethod
    def warm_up(self) -> None:
        """Compile, before the server takes requests, every kernel that a step may launch."""

    def wrap_sample_tokens(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Send the step's report along with the step's output."""

        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            try:
                output = original(*args, **kwargs)
            except Exception:
                end_if_silent()
                raise
            report, self._report = self._report, None
            return output if report is None else way_back.send(output, report)

        return sample_tokens
