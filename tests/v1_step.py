"""One V1 sampling step without an engine: vLLM's real rejection sampler with the seam attached to it."""

from types import SimpleNamespace
from typing import Any

import torch

# Its import replaces the CUDA calls that vLLM's samplers make; a CPU worker does it first of all.
import vllm.v1.worker.cpu.shm  # noqa: F401
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.upstream import v1_runner

current_platform.register_triton_kernel_overrides()


class Runner:
    """As much of vLLM's V1 runner as one sampling step touches."""

    def __init__(self, num_rows: int) -> None:
        """Rows are the requests `r0`, `r1`, ..."""
        self.device = torch.device("cpu")
        self.rejection_sampler = RejectionSampler(Sampler())
        self.input_batch = SimpleNamespace(req_ids=[f"r{row}" for row in range(num_rows)])
        self.discard_request_mask = SimpleNamespace(gpu=torch.zeros(num_rows, dtype=torch.bool))
        self.draft_probs: torch.Tensor | None = None
        self.sampling: SamplingMetadata | None = None
        self.asd_verifier: Any = None

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> None:
        """Nothing to compute: the logits are given."""

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        return self.rejection_sampler(spec_decode_metadata, self.draft_probs, logits, self.sampling)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """`grammar_output` stands for the step's logits and metadata."""
        return SimpleNamespace(output=self._sample(*grammar_output))


def vllm_config(detailed: bool = False, num_drafts: int = 8, vocab_size: int = 64) -> Any:
    """As much of vLLM's configuration as the seams of both runners look at."""
    level = "detailed" if detailed else "none"
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        observability_config=SimpleNamespace(per_request_spec_decode_metrics=level),
        speculative_config=SimpleNamespace(num_speculative_tokens=num_drafts),
        model_config=SimpleNamespace(get_vocab_size=lambda: vocab_size, model="a model"),
    )


def attach(runner: Runner, config: AsdConfig, limits: dict[str, RequestLimits], **admit: Any) -> None:
    """Attach the seam as the plugin does and open the entries of the relaxed requests."""
    v1_runner.attach(runner, vllm_config(), config)
    for request_id, given in limits.items():
        runner.asd_verifier.admit(request_id, given, **admit)


def metadata(drafts: list[list[int]]) -> SpecDecodeMetadata:
    """Describe a step with these drafts to vLLM."""
    made = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
    row, target, bonus = 0, [], []
    for ids in drafts:
        target += list(range(row, row + len(ids)))
        row += len(ids)
        bonus.append(row)
        row += 1
    made.target_logits_indices = torch.tensor(target, dtype=torch.int32)
    made.bonus_logits_indices = torch.tensor(bonus, dtype=torch.int32)
    made.logits_indices = torch.arange(row, dtype=torch.int32)
    return made


def sampling(
    temperature: list[float],
    generators: dict[int, torch.Generator] | None = None,
    logprobs: int | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
) -> SamplingMetadata:
    """Describe the rows' sampling to vLLM; temperature 0 is greedy, top-k and top-p are the same for all."""
    num_rows = len(temperature)
    all_greedy = not any(temperature)
    unused = torch.empty(0)
    return SamplingMetadata(
        temperature=None if all_greedy else torch.tensor(temperature),
        all_greedy=all_greedy,
        all_random=all(temperature),
        top_p=None if top_p is None else torch.full((num_rows,), top_p),
        top_k=None if top_k is None else torch.full((num_rows,), top_k, dtype=torch.int32),
        generators=generators or {},
        max_num_logprobs=logprobs,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=unused,
        presence_penalties=unused,
        repetition_penalties=unused,
        output_token_ids=[[] for _ in range(num_rows)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
