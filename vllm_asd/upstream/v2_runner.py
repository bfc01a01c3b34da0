"""Worker, Model Runner V2: the ledger follows the scheduler, a step is opened and closed around ``sample``.

The decision itself is made in :mod:`vllm_asd.upstream.v2_kernels`. Dummy runs, graph capture and the padding
of CUDA graphs never come through ``sample``; the requests of vLLM's kernel warm-up do, as any other request,
and are gone from the ledger when the warm-up ends.

What is read of vLLM's tensors here, and which elements it leaves unwritten: ``sampled_token_ids`` [R, K + 1]
(unwritten after a row's ``num_sampled``), ``num_sampled`` [R] (all written; 0 for prefills that are not
complete). The others are in :mod:`vllm_asd.upstream.v2_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_asd.batch import CoupledRows, Emitted
from vllm_asd.config import AsdConfig, AsdConfigError
from vllm_asd.kernels import MaximaBlocks
from vllm_asd.kernels.blocks import VOCAB_BLOCK
from vllm_asd.upstream.arguments import with_arguments
from vllm_asd.upstream.patching import APPLIED, Patch
from vllm_asd.upstream.scheduled import follow_schedule
from vllm_asd.upstream.seam import Seam, make_verifier
from vllm_asd.upstream.v2_gumbel import REJECTION_SAMPLE, perturb, require_noise
from vllm_asd.upstream.v2_kernels import REJECTION_KERNEL, RelaxedRejectionKernel, current
from vllm_asd.verification import Verifier

MODULE = "vllm.v1.worker.gpu.model_runner"

LOAD_MODEL = Patch(
    target=f"{MODULE}:GPUModelRunner.load_model",
    parameters=("self", "load_dummy_weights", "args", "model", "kwargs"),
    why="the rejection sampler is made here, and only on ranks that sample",
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    instance=True,
)

EXECUTE_MODEL = Patch(
    target=f"{MODULE}:GPUModelRunner.execute_model",
    parameters=(
        "self",
        "scheduler_output",
        "intermediate_tensors",
        "dummy_run",
        "skip_attn_for_dummy_run",
        "is_profile",
        "context_len",
        "valid_dummy_state_slots",
        "randomize_inputs",
    ),
    why="new and finished requests arrive here",
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    instance=True,
    hot=True,
)

SAMPLE = Patch(
    target=f"{MODULE}:GPUModelRunner.sample",
    parameters=("self", "hidden_states", "input_batch", "grammar_output"),
    why="brackets the sampling of one step, and only of real ones",
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    instance=True,
    hot=True,
)

SAMPLE_TOKENS = Patch(
    target=f"{MODULE}:GPUModelRunner.sample_tokens",
    parameters=("self", "grammar_output"),
    why="builds the output that travels to the scheduler; the step's report rides on it",
    remove_when="ModelRunnerOutput carries plugin data",
    process="worker",
    instance=True,
    hot=True,
)


def is_v2(runner: object) -> bool:
    """Whether a model runner is vLLM's V2, or derived from it."""
    return any(base.__module__ == MODULE for base in type(runner).__mro__)


def attach(runner: Any, vllm_config: Any, config: AsdConfig) -> None:
    """Give a V2 runner its seam, as soon as it has loaded its model; the ranks that do not sample get none.

    Raises:
        PatchError: The installed vLLM is not what the records expect.
    """
    if not runner.is_last_pp_rank:
        return
    # Made here and not where the model is loaded: vLLM loads into a memory pool whose content a level-2 sleep
    # throws away, and the ledger must outlive it.
    seam = V2Seam(runner, make_verifier(runner, vllm_config, config, runner.max_num_reqs))

    def wrap_load_model(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_model(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not hasattr(runner, "asd_verifier"):
                _bind(runner, seam, vllm_config, config)
            return result

        return load_model

    LOAD_MODEL.bind(runner, wrap_load_model)


def _bind(runner: Any, seam: V2Seam, vllm_config: Any, config: AsdConfig) -> None:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    if type(runner.rejection_sampler) is not RejectionSampler:
        raise AsdConfigError(
            f"ASD cannot be combined with {vllm_config.model_config.model}, which brings its own sampler: "
            "drop rejection_sample_method 'asd'"
        )
    APPLIED.apply(REJECTION_KERNEL, RelaxedRejectionKernel)
    if config.asd_sampling == "gumbel":
        require_noise()
        APPLIED.apply(REJECTION_SAMPLE, lambda sample: with_arguments(sample, _couple))
    EXECUTE_MODEL.bind(runner, seam.wrap_execute_model)
    SAMPLE.bind(runner, seam.wrap_sample)
    SAMPLE_TOKENS.bind(runner, seam.wrap_sample_tokens)
    runner.asd_seam = seam
    runner.asd_verifier = seam.verifier


class V2Seam(Seam):
    """What one V2 runner needs between its steps."""

    def __init__(self, runner: Any, verifier: Verifier) -> None:
        """Hold the runner that is served and the verifier that serves it."""
        super().__init__(verifier)
        self.runner = runner
        self._next_row = 0

    def wrap_execute_model(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Follow the scheduler's admissions and releases before the step."""

        def execute_model(
            scheduler_output: Any, intermediate_tensors: Any = None, dummy_run: bool = False, **kwargs: Any
        ) -> Any:
            if not dummy_run:
                follow_schedule(self.verifier, scheduler_output)
            return original(scheduler_output, intermediate_tensors, dummy_run, **kwargs)

        return execute_model

    def wrap_sample(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Open the step, let vLLM sample, close the step with what it emitted."""

        def sample(hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
            self._next_row = 0
            active = self.verifier.begin(input_batch.req_ids)
            token = current.set(self if active else None)
            try:
                result = original(hidden_states, input_batch, grammar_output)
            finally:
                current.reset(token)
            if active:
                sampler_output, num_sampled = result[:2]
                self._report = self.verifier.finish(Emitted(sampler_output.sampled_token_ids, num_sampled))
            else:
                self._report = None
            return result

        return sample

    def relax(self, blocks: MaximaBlocks) -> None:
        """Decide the next chunk of the step; vLLM verifies at most 1 GiB of logits at a time."""
        self._next_row += blocks.num_rows
        self.verifier.relax(blocks)

    def couple(self, arguments: dict[str, Any]) -> None:
        """Perturb the next chunk's coupled rows, if any, in the arguments of ``rejection_sample``."""
        coupled = self.verifier.coupled_rows(self._next_row, arguments["idx_mapping"].shape[0])
        if coupled is not None:
            perturb(arguments, coupled, self._fresh_noise)

    @property
    def _fresh_noise(self) -> bool:
        """A pricing that looks ahead decides by noise of positions that it then gives up."""
        return self.verifier.config.asd_pricing != "remaining"

    def warm_up(self) -> None:
        """Run the rule once on a row that belongs to no request; see :meth:`Seam.warm_up`.

        For the logits as the model leaves them and as vLLM's processors do.
        """
        shape, device = self.verifier.shape, self.runner.device
        num_logits = shape.max_num_draft_tokens + 1
        ids = torch.zeros(num_logits, dtype=torch.int32, device=device)
        emitted = Emitted(ids.to(torch.int64).unsqueeze(0), ids.new_zeros(1))
        for dtype in sorted({self.runner.dtype, torch.float32}, key=str):
            logits = torch.zeros(num_logits, shape.vocab_size, dtype=dtype, device=device)
            self.verifier.rehearse(lambda logits=logits: self._rehearse(logits, ids), emitted)  # type: ignore[misc]
            if self.verifier.config.asd_sampling == "gumbel":
                self._rehearse_noise(logits, ids)

    def _rehearse(self, logits: Tensor, ids: Tensor) -> None:
        num_logits = ids.shape[0]
        num_blocks = -(-self._seen_vocab_size // VOCAB_BLOCK)
        self.verifier.relax(
            MaximaBlocks(
                logits=logits,
                block_max=logits.new_zeros(num_logits, num_blocks, dtype=torch.float32),
                block_argmax=logits.new_zeros(num_logits, num_blocks, dtype=torch.int64),
                draft_sampled=ids,
                cu_num_logits=torch.tensor([0, num_logits], dtype=torch.int32, device=ids.device),
            )
        )

    @property
    def _seen_vocab_size(self) -> int:
        """As many tokens as vLLM takes block maxima of: a drafter's cached logits may be narrower."""
        size = self.verifier.shape.vocab_size
        speculator = getattr(self.runner, "speculator", None)
        draft_logits = getattr(speculator, "draft_logits", None)
        return size if draft_logits is None else min(size, draft_logits.shape[-1])

    def _rehearse_noise(self, logits: Tensor, ids: Tensor) -> None:
        sampler = self.runner.sampler
        states = sampler.sampling_states
        arguments = {
            "target_logits": logits,
            "pos": ids.to(torch.int64),
            "idx_mapping": ids[:1].to(torch.int64),
            "expanded_idx_mapping": ids.to(torch.int64),
            "expanded_local_pos": ids,
            "temperature": states.temperature.gpu,
            "seed": states.seeds.gpu,
            "use_fp64": sampler.use_fp64_gumbel,
        }
        coupled = CoupledRows([True], torch.ones(1, dtype=torch.bool, device=ids.device))
        perturb(arguments, coupled, self._fresh_noise)


def _couple(arguments: dict[str, Any]) -> None:
    seam = current.get()
    if isinstance(seam, V2Seam):
        seam.couple(arguments)
