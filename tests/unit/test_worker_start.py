"""When a worker's seam is made and warmed up, and in whose memory its state lies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests import v1_step
from vllm_asd.config import AsdConfig
from vllm_asd.upstream import v2_runner, worker
from vllm_asd.upstream.patching import APPLIED
from vllm_asd.upstream.v2_kernels import REJECTION_KERNEL
from vllm_asd.upstream.v2_runner import MODULE
from vllm_asd.verification import Verifier

CONFIG = AsdConfig(asd_guard="on")


class Pool(TorchDispatchMode):
    """Keeps what is allocated while it is entered, as vLLM's pool for weights does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owned: list[Tensor] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.owned += [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result

    def owns(self, tensor: Tensor) -> bool:
        """Whether a tensor would be gone after a sleep of level 2."""
        return tensor.untyped_storage().data_ptr() in {t.untyped_storage().data_ptr() for t in self.owned}


class Runner:
    """What Model Runner V2 is before and after it has loaded its model."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.dtype = torch.bfloat16
        self.is_last_pp_rank = True
        self.max_num_reqs = 1

    def load_model(
        self, load_dummy_weights: bool = False, *args: Any, model: Any = None, **kwargs: Any
    ) -> None:
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        self.weights = torch.ones(8)
        self.rejection_sampler = object.__new__(RejectionSampler)

    def execute_model(
        self,
        scheduler_output: Any,
        intermediate_tensors: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        is_profile: bool = False,
        context_len: int | None = None,
        valid_dummy_state_slots: bool = False,
        randomize_inputs: bool = False,
    ) -> None:
        """Nothing to compute."""

    def sample(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> None:
        """Nothing to sample."""

    def sample_tokens(self, grammar_output: Any) -> None:
        """Nothing to send."""


Runner.__module__ = MODULE


@pytest.fixture
def rejection_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a Triton that is usable vLLM has a stand-in for its kernels, which names no arguments."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils as utils

    names = REJECTION_KERNEL.parameters
    if not hasattr(utils._rejection_kernel, "arg_names"):
        kernel = type("Kernel", (), {"arg_names": names, "__signature__": None})()
        monkeypatch.setattr(utils, "_rejection_kernel", kernel)
        monkeypatch.setattr(type(REJECTION_KERNEL), "check", lambda self: self.locate())
    yield
    APPLIED.undo_all()


def state_of(owner: object, seen: set[int] | None = None) -> list[Tensor]:
    """All tensors that objects of ours hold, however deep."""
    seen = set() if seen is None else seen
    if isinstance(owner, Tensor):
        return [owner]
    if id(owner) in seen:
        return []
    seen.add(id(owner))
    if isinstance(owner, dict):
        parts = list(owner.values())
    elif isinstance(owner, list | tuple):
        parts = list(owner)
    elif type(owner).__module__.startswith("vllm_asd"):
        parts = list(vars(owner).values())
    else:
        return []
    return [tensor for part in parts for tensor in state_of(part, seen)]


def grow(verifier: Verifier) -> None:
    """More requests, with more sets of protected tokens, than there is room for."""
    ids = [f"request-{row}" for row in range(9)]
    for row, request_id in enumerate(ids):
        verifier.admit(request_id, verifier.config.limits, stop_ids=[row])
    assert verifier.begin(ids)


@pytest.mark.usefixtures("rejection_kernel")
def test_the_v2_state_outlives_a_sleep_that_throws_weights_away() -> None:
    """Made before the model is loaded, whole; what grows later grows elsewhere too, and so after waking."""
    runner: Any = Runner()
    v2_runner.attach(runner, v1_step.vllm_config(), CONFIG)
    assert not hasattr(runner, "asd_seam"), "ranks are told apart by what they load"
    with Pool() as pool:
        runner.load_model()
    assert pool.owns(runner.weights)
    seam = runner.asd_seam
    before = state_of(seam)
    assert len(before) >= 4, "ledger, phases, guards, protected sets"
    assert not any(map(pool.owns, before))
    with Pool() as again:
        runner.load_model()
    assert runner.asd_seam is seam
    assert [id(tensor) for tensor in state_of(seam)] == [id(tensor) for tensor in before]
    grow(runner.asd_verifier)
    after = state_of(seam)
    assert sum(tensor.nbytes for tensor in after) > sum(tensor.nbytes for tensor in before)
    assert not any(pool.owns(tensor) or again.owns(tensor) for tensor in after)


def test_the_v1_state_is_made_before_its_model_is_loaded() -> None:
    """The seam is attached when the runner is made."""
    runner = v1_step.Runner(1)
    v1_step.attach(runner, CONFIG, {})
    with Pool() as pool:
        runner.weights = torch.ones(8)  # type: ignore[attr-defined]
    grow(runner.asd_verifier)
    held = state_of(runner.asd_verifier)
    assert len(held) >= 4
    assert not any(map(pool.owns, held))


def test_a_rank_that_does_not_sample_has_no_state() -> None:
    """The early stages of a pipeline."""
    runner: Any = Runner()
    runner.is_last_pp_rank = False
    v2_runner.attach(runner, v1_step.vllm_config(), CONFIG)
    runner.load_model()
    assert not hasattr(runner, "asd_seam")


class Worker:
    """As much of vLLM's worker as its start is."""

    def __init__(self, runner: Any, calls: list[str]) -> None:
        self.model_runner = runner
        self.calls = calls

    def compile_or_warm_up_model(self) -> str:
        self.calls.append("vLLM")
        return "times"


@pytest.mark.parametrize("samples", [False, True])
def test_the_seam_warms_up_before_vllm_watches_for_compilation(
    samples: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled after vLLM's own warm-up is reported or refused; some ranks have no seam."""
    calls: list[str] = []
    runner = SimpleNamespace()
    if samples:
        runner.asd_seam = SimpleNamespace(warm_up=lambda: calls.append("ours"))
    monkeypatch.setattr(worker, "asd_config_of", lambda config: config)
    monkeypatch.setattr(worker, "attach", lambda *_: None)
    wrapper = SimpleNamespace(vllm_config=CONFIG, worker=Worker(runner, calls))
    worker._wrap_init_device(lambda _: calls.append("init"))(wrapper)
    assert wrapper.worker.compile_or_warm_up_model() == "times"
    assert calls == ["init", *(["ours"] if samples else []), "vLLM"]


def test_a_worker_that_has_served_may_warm_up_again() -> None:
    """As elastic scaling does, outside inference mode, with tables that have grown inside it."""
    runner = v1_step.Runner(1)
    v1_step.attach(runner, CONFIG, {})
    seam: Any = runner.asd_seam  # type: ignore[attr-defined]
    with torch.inference_mode():
        grow(seam.verifier)
        seam.verifier.release(["request-3"])
    calls: list[str] = []
    warm_up = worker._wrap_warm_up(Worker(runner, calls), lambda: calls.append("vLLM"))
    warm_up()
    assert calls == ["vLLM"]


def test_a_worker_that_was_not_asked_for_asd_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a seam nor a wrapped method."""
    monkeypatch.setattr(worker, "asd_config_of", lambda _: None)
    wrapper = SimpleNamespace(vllm_config=None, worker=Worker(SimpleNamespace(), []))
    worker._wrap_init_device(lambda _: None)(wrapper)
    assert vars(wrapper.worker).keys() == {"model_runner", "calls"}
