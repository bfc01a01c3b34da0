"""Coupled requests beside greedy ones and vLLM's own: who is touched, who is not, and what is reported."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.read_blocks import Block, by_request
from tests.v1_step import Runner, attach, metadata, sampling
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels import add_gumbel_noise
from vllm_asd.upstream import way_back
from vllm_asd.upstream.scheduled import follow_schedule
from vllm_asd.verification import DraftShape, Verifier

VOCAB, NUM_DRAFTS = 64, 3
SHAPE = DraftShape(NUM_DRAFTS, VOCAB)
CONFIG = AsdConfig(asd_gate=0.5, asd_budget=1e6, asd_block_cap=8, asd_sampling="gumbel")
GREEDY, COUPLED, VLLMS = (0, 3), (1, 4), (2, 5)
TEMPERATURE = [0.0, 0.9, 1.0, 0.0, 1.4, 0.7]


def _decode(
    coupled: tuple[int, ...] = COUPLED, seed: int = 0, config: AsdConfig = CONFIG, rows: int = 6
) -> tuple[torch.Tensor, dict[str, Block], Any]:
    """One step of `rows` requests, all with a seed, with greedy ones always relaxed."""
    logits = torch.randn(rows * (NUM_DRAFTS + 1), VOCAB, generator=torch.Generator().manual_seed(seed))
    blocks = logits.view(rows, NUM_DRAFTS + 1, VOCAB)
    drafts = [[int(row.topk(2).indices[1]) for row in block[:NUM_DRAFTS]] for block in blocks]
    runner = Runner(rows)
    attach(runner, config, {f"r{row}": config.limits for row in GREEDY if row < rows})
    for row in coupled:
        runner.asd_verifier.admit(f"r{row}", config.limits, sampled=True)
    generators = {row: torch.Generator().manual_seed(row) for row in range(rows) if TEMPERATURE[row]}
    runner.sampling = sampling(TEMPERATURE[:rows], generators, logprobs=1, top_k=40, top_p=0.95)
    torch.manual_seed(seed)
    output: Any = runner.sample_tokens((logits, metadata(drafts)))
    return output.output.sampled_token_ids, by_request(way_back.received(output)), output.output


@pytest.mark.parametrize("seed", range(8))
def test_the_others_are_left_alone(seed: int) -> None:
    """Greedy rows and vLLM's own sampled rows emit, and are charged, as without any coupled row."""
    plain, plain_reports, _ = _decode(coupled=(), seed=seed)
    mixed, reports, _ = _decode(seed=seed)
    for row in (*GREEDY, *VLLMS):
        assert torch.equal(plain[row], mixed[row]), row
    for row in GREEDY:
        assert reports[f"r{row}"] == plain_reports[f"r{row}"]
    assert set(reports) == {f"r{row}" for row in (*GREEDY, *COUPLED)}


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_repeats_whoever_is_beside(seed: int) -> None:
    """A coupled row draws from its own generator alone."""
    first, first_reports, _ = _decode(seed=seed)
    again, reports, _ = _decode(seed=seed)
    assert torch.equal(first, again)
    assert reports == first_reports
    alone, alone_reports, _ = _decode(coupled=(1,), seed=seed, rows=2)
    assert torch.equal(first[1], alone[1])
    assert alone_reports["r1"] == reports["r1"]


def test_logprobs_are_without_noise() -> None:
    """The response reports what the model thinks of the token, as for any sampled request."""
    emitted, reports, output = _decode()
    logits = torch.randn(6 * (NUM_DRAFTS + 1), VOCAB, generator=torch.Generator().manual_seed(0))
    expected = logits.log_softmax(-1)
    assert any(reports[f"r{row}"].exceptions for row in COUPLED)
    width = NUM_DRAFTS + 1
    for row in COUPLED:
        for position in range(int((emitted[row] >= 0).sum())):
            flat = row * width + position
            assert output.logprobs_tensors.logprob_token_ids[flat, 0] == emitted[row, position]
            torch.testing.assert_close(
                output.logprobs_tensors.logprobs[flat, 0], expected[flat, emitted[row, position]]
            )


def test_shadow_counts_and_keeps_the_sample() -> None:
    """The request draws the same noise, and emits the target's token where it would have kept the draft."""
    shadow = CONFIG.model_copy(update={"asd_mode": "shadow"})
    emitted, reports, _ = _decode(config=shadow)
    enforced, others, _ = _decode()
    for row in COUPLED:
        report, other = reports[f"r{row}"], others[f"r{row}"]
        assert report == other._replace(shadow=True)
        assert (emitted[row] >= 0).sum() == report.strict_accepted + 1
        for position, target, _ in report.exceptions[:1]:
            assert emitted[row, position] == target
            assert enforced[row, position] != target


def test_noise_is_fresh_everywhere_it_should_be() -> None:
    """No value twice, none on the rows of others, none that unmasks a token."""
    logits = torch.zeros(10, VOCAB)
    logits[:, 5] = -torch.inf
    noise = add_gumbel_noise(logits, [2, 3, 0, 5], [True, False, True, True], {0: torch.Generator()})
    assert torch.equal(noise[2:5], logits[2:5])
    drawn = noise[[0, 1, 5, 6, 7, 8, 9]]
    assert (drawn[:, 5] == -torch.inf).all()
    assert drawn[drawn > -torch.inf].unique().numel() > 0.999 * 7 * (VOCAB - 1)
    assert not noise.isnan().any()


def _schedule(verifier: Verifier, temperature: float, extra_args: dict[str, Any] | None = None) -> bool:
    """Schedule the request "r"; whether its next step is perturbed."""
    params = SimpleNamespace(
        temperature=temperature, extra_args=extra_args, stop_token_ids=None, eos_token_id=None
    )
    new = SimpleNamespace(req_id="r", sampling_params=params, prompt_token_ids=[1])
    follow_schedule(verifier, SimpleNamespace(finished_req_ids=(), scheduled_new_reqs=[new]))
    verifier.begin(["other", "r"])
    coupled = verifier.coupled_rows()
    assert coupled is None or (coupled.flags == [False, True] == coupled.mask.tolist())
    return coupled is not None


@pytest.mark.parametrize(
    ("server", "temperature", "extra_args", "expected"),
    [
        ("gumbel", 0.8, None, True),
        ("gumbel", 0.0, None, False),
        ("off", 0.8, None, False),
        ("gumbel", 0.8, {"asd_sampling": "off"}, False),
        ("gumbel", 0.8, {"asd_sampling": "gumbel", "asd_budget": 1.0}, True),
        ("gumbel", 0.8, {"asd_budget": 0}, False),
        ("gumbel", 0.8, {"asd_budget": "wrong"}, False),
    ],
)
def test_who_is_coupled(
    server: str, temperature: float, extra_args: dict[str, Any] | None, expected: bool
) -> None:
    """Sampled, asked for by the server, not declined by the request, and not strict."""
    config = AsdConfig.from_keys({"asd_sampling": server})
    verifier = Verifier(config, torch.device("cpu"), 2, SHAPE)
    assert _schedule(verifier, temperature, extra_args) is expected
    assert ("r" in verifier.ledger) is (expected or temperature == 0)


def test_a_session_changes_its_temperature() -> None:
    """Each chunk counts as it is; the account goes on."""
    verifier = Verifier(CONFIG, torch.device("cpu"), 2, SHAPE)
    assert not _schedule(verifier, 0.0)
    assert _schedule(verifier, 1.0)
    assert not _schedule(verifier, 1.0, {"asd_sampling": "off"})
    assert verifier.ledger.snapshot()["r"].limits == RequestLimits(0.0, 0.0, 0)
    assert _schedule(verifier, 1.0)
    assert not _schedule(verifier, 0.0)
    verifier.release(["r"])
    assert not verifier.coupled_rows()
