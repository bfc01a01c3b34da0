"""The timer around a runner's methods: its parts add up, and it leaves no trace."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_asd.tools.bench.step_timer import PARTS, StepTimer


class Verifier:
    def begin(self) -> None:
        time.sleep(0.001)

    relax = finish = admit = release = begin


class Model:
    def compute_logits(self) -> None:
        time.sleep(0.002)


class RunnerV1:
    """Computes logits before it samples."""

    def __init__(self) -> None:
        self.device = SimpleNamespace(type="cpu")
        self.model, self.asd_verifier = Model(), Verifier()

    def execute_model(self, scheduled: Any) -> None:
        self._model_forward()
        self.model.compute_logits()

    def _model_forward(self) -> None:
        time.sleep(0.004)

    def _sample(self) -> None:
        self.asd_verifier.relax()
        time.sleep(0.001)

    def propose_draft_token_ids(self) -> None:
        time.sleep(0.003)

    def step(self, scheduled: Any) -> None:
        self.execute_model(scheduled)
        self._sample()
        self.propose_draft_token_ids()


class RunnerV2(RunnerV1):
    """Computes logits while it samples; the draft is the speculator's."""

    _model_forward: Any = None
    _sample: Any = None
    propose_draft_token_ids: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.speculator = SimpleNamespace(propose=lambda: time.sleep(0.003))

    def execute_model(self, scheduled: Any) -> None:
        time.sleep(0.004)

    def sample(self) -> None:
        self.model.compute_logits()
        self.asd_verifier.relax()
        time.sleep(0.001)

    def step(self, scheduled: Any) -> None:
        self.execute_model(scheduled)
        self.sample()
        self.speculator.propose()


def scheduled(requests: int, new: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        num_scheduled_tokens={str(i): 1 for i in range(requests)}, scheduled_new_reqs=[None] * new
    )


@pytest.mark.parametrize("kind", [RunnerV1, RunnerV2])
def test_parts_add_up_to_the_step_and_none_is_lost(kind: type[RunnerV1]) -> None:
    runner = kind()
    before = dict(vars(runner))
    timer = StepTimer(runner, 2)
    for _ in range(3):
        timer.step(lambda: runner.step(scheduled(2)))
    timer.remove()
    found = timer.summary()
    mean = found["mean_ms"]
    assert sum(mean[part] for part in PARTS) == pytest.approx(mean["step"])
    slept = {"target forward": 4, "logits": 2, "verification": 1, "the rule": 1, "draft": 3}
    for part, at_least_ms in slept.items():
        assert mean[part] >= at_least_ms
    assert found["rule_share"] == pytest.approx(mean["the rule"] / mean["step"])
    assert dict(vars(runner)) == before


def test_only_steps_in_which_the_whole_batch_decodes_count() -> None:
    runner = RunnerV1()
    timer = StepTimer(runner, 2)
    timer.step(lambda: runner.step(scheduled(2, new=1)))
    timer.step(lambda: runner.step(scheduled(1)))
    with pytest.raises(ValueError, match="raise --max-tokens"):
        timer.summary()
    timer.step(lambda: runner.step(scheduled(2)))
    assert timer.summary()["steps"] == 1
