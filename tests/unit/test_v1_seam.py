"""The V1 seam around vLLM's real rejection sampler: what it changes, and all that it leaves alone."""

import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

from tests.v1_step import Runner, attach, metadata, sampling
from vllm_asd.config import AsdConfig, RequestLimits

VOCAB = 50
LAX = AsdConfig(asd_gate=100.0, asd_budget=1e6, asd_block_cap=8)


def _logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def _second_best(logits: torch.Tensor, num_drafts: int) -> list[int]:
    return [int(row.topk(2).indices[1]) for row in logits[:num_drafts]]


def _emit(runner: Runner, logits: torch.Tensor, drafts: list[list[int]]) -> torch.Tensor:
    ids: torch.Tensor = runner.sample_tokens((logits.clone(), metadata(drafts))).output.sampled_token_ids
    return ids


def test_a_kept_token_has_its_own_logprob() -> None:
    """The response reports the log-probability of the token that was kept, not of the argmax."""
    logits = _logits(4)
    drafts = [_second_best(logits, 3)]
    runner = Runner(1)
    attach(runner, LAX, {"r0": LAX.limits})
    runner.sampling = sampling([0.0], logprobs=2)
    output = runner.sample_tokens((logits.clone(), metadata(drafts))).output
    assert output.sampled_token_ids[0, :3].tolist() == drafts[0]
    tensors: Any = output.logprobs_tensors
    expected = logits.log_softmax(-1)
    for position, token in enumerate(drafts[0]):
        assert tensors.logprob_token_ids[position, 0] == token
        torch.testing.assert_close(tensors.logprobs[position, 0], expected[position, token])
        assert tensors.selected_token_ranks[position] == 2


def test_relaxed_neighbours_do_not_touch_sampled_rows() -> None:
    """With the same seeds, sampled rows emit bit for bit what they emit without ASD."""
    num_rows, drafted = 6, 3
    logits = _logits(num_rows * (drafted + 1), seed=3)
    blocks = logits.view(num_rows, drafted + 1, VOCAB)
    drafts = [_second_best(block, drafted) for block in blocks]
    temperature = [0.0, 1.0, 0.0, 0.7, 0.0, 1.3]

    def emit(relaxed: bool) -> torch.Tensor:
        runner = Runner(num_rows)
        limits = {f"r{row}": LAX.limits for row in (0, 2, 4)} if relaxed else {}
        attach(runner, LAX, limits)
        generators = {row: torch.Generator().manual_seed(row) for row in range(num_rows)}
        runner.sampling = sampling(temperature, generators)
        torch.manual_seed(0)
        return _emit(runner, logits, drafts)

    plain, relaxed = emit(False), emit(True)
    assert torch.equal(plain[1::2], relaxed[1::2])
    assert relaxed[0::2, :drafted].tolist() == drafts[0::2]
    assert plain[0::2, 1:].eq(-1).all()


def test_one_strict_row_beside_a_relaxed_one() -> None:
    """Limits are per row: the request without an entry is verified strictly."""
    logits = _logits(4, seed=1)
    drafts = [_second_best(logits, 1), _second_best(logits[2:], 1)]
    runner = Runner(2)
    attach(runner, LAX, {"r0": LAX.limits})
    runner.sampling = sampling([0.0, 0.0])
    emitted = _emit(runner, logits, drafts)
    assert emitted[0, 0] == drafts[0][0]
    assert emitted[1].tolist() == [int(logits[2].argmax()), -1]


def test_a_warm_up_call_touches_no_entry() -> None:
    """Dummy runs of vLLM call the sampler outside a step: strict, and nothing is charged."""
    logits = _logits(2, seed=2)
    draft = _second_best(logits, 1)
    runner = Runner(1)
    attach(runner, LAX, {"r0": LAX.limits})
    runner.sampling = sampling([0.0])
    output = runner.rejection_sampler(metadata([draft]), None, logits.clone(), runner.sampling)
    assert output.sampled_token_ids[0].tolist() == [int(logits[0].argmax()), -1]
    assert runner.asd_verifier.ledger.spent("r0") == 0.0


@pytest.mark.parametrize(("in_a_step", "temperature"), [(False, 0.0), (True, 0.0), (True, 1.0)])
def test_no_logits_are_held_outside_a_step(in_a_step: bool, temperature: float) -> None:
    """Those of vLLM's profiling are as large as any; where all rows are sampled nobody takes them over."""
    runner = Runner(1)
    attach(runner, LAX, {"r0": LAX.limits})
    runner.sampling = sampling([temperature])
    made: list[weakref.ref[torch.Tensor]] = []
    wrapped = runner.rejection_sampler.apply_logits_processors

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        logits: torch.Tensor = wrapped(*args, **kwargs)
        made.append(weakref.ref(logits))
        return logits

    runner.rejection_sampler.apply_logits_processors = watched
    drafts = [_second_best(_logits(4), 3)]
    if in_a_step:
        _emit(runner, _logits(4), drafts)
        assert (runner.asd_verifier.ledger.spent("r0") > 0) is (temperature == 0)
    else:
        runner.rejection_sampler(metadata(drafts), None, _logits(4), runner.sampling)
    assert [reference() for reference in made] == [None]


def test_a_placeholder_ends_the_proposal() -> None:
    """-1 is never accepted, never charged, never used as an index."""
    logits = _logits(4, seed=4)
    first = _second_best(logits, 1)[0]
    runner = Runner(1)
    attach(runner, LAX, {"r0": LAX.limits})
    runner.sampling = sampling([0.0])
    emitted = _emit(runner, logits, [[first, -1, first]])
    assert emitted[0].tolist() == [first, int(logits[1].argmax()), -1, -1]
    regret = float(logits[0].max() - logits[0, first])
    assert abs(runner.asd_verifier.ledger.spent("r0") - regret) < 1e-5


def test_a_discarded_row_earns_no_refill() -> None:
    """A partial prefill emits nothing that counts."""
    limits = RequestLimits(budget=4.0, gate=1e3, block_cap=8, refill=0.5)
    config = AsdConfig(asd_budget=4.0, asd_gate=1e3, asd_block_cap=8, asd_refill=0.5)
    logits = _logits(2, seed=5)
    best = int(logits[0].argmax())
    spent = {}
    for discarded in (False, True):
        runner = Runner(1)
        attach(runner, config, {"r0": limits})
        runner.sampling = sampling([0.0])
        runner.discard_request_mask.gpu[0] = discarded
        second = _second_best(logits, 1)[0]
        _emit(runner, logits, [[second]])
        _emit(runner, logits, [[best]])
        spent[discarded] = runner.asd_verifier.ledger.snapshot()["r0"].remaining
    assert spent[False] > spent[True]


NOT_REQUESTED = """
import sys, torch, vllm.engine.arg_utils, vllm.v1.worker.worker_base
before = set(sys.modules)
from vllm_asd.plugin import register
register(); register()
from vllm_asd.upstream.patching import APPLIED
patches = [entry[0] for entry in APPLIED._applied.values()]
assert patches, "nothing at all was applied: the test would pass for a plugin that does nothing"
assert not [patch.target for patch in patches if patch.hot or patch.instance]
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new))
import vllm.v1.worker.gpu_model_runner as runner, vllm.v1.sample.rejection_sampler as sampler
for name in ("execute_model", "_sample", "sample_tokens"):
    assert getattr(runner.GPUModelRunner, name).__module__.split(".")[0] != "vllm_asd", name
assert type(sampler._rejection_greedy_sample).__module__.split(".")[0] == "vllm"
from vllm import SamplingParams
assert SamplingParams._verify_extra_args.__module__ == "vllm.sampling_params"
SamplingParams(extra_args={"asd_budget": "nonsense", "other": 1})
"""


def test_installed_but_not_requested() -> None:
    """No patch on a hot path, none on an instance, and no foreign `asd_` value is looked at."""
    result = subprocess.run(
        [sys.executable, "-c", NOT_REQUESTED], capture_output=True, text=True, check=False, timeout=240
    )
    assert result.returncode == 0, result.stderr[-3000:]
