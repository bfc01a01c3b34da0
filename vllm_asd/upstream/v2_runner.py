"""Worker, Model Runner V2: the ledger follows the scheduler, a step is opened and closed around ``sample``.

The decision itself is made in :mod:`vllm_asd.upstream.v2_kernels`. Dummy runs, graph capture and the padding
of CUDA graphs never come through ``sample``; the requests of vLLM's kernel warm-up do, as any other request,
and are gone from the ledger when the warm-up ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_asd.config import AsdConfig, AsdConfigError
from vllm_asd.kernels import DraftBlocks, free_of_nan
from vllm_asd.upstream.arguments import with_arguments
from vllm_asd.upstream.patching import APPLIED, Patch
from vllm_asd.upstream.scheduled import follow_schedule
from vllm_asd.upstream.seam import Seam, make_verifier
from vllm_asd.upstream.v2_gumbel import REJECTION_SAMPLE, perturb, require_noise
from vllm_asd.upstream.v2_kernels import REJECTION_KERNEL, RelaxedRejectionKernel, current, rehearse
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

    def wrap_load_model(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_model(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if runner.is_last_pp_rank and not hasattr(runner, "asd_verifier"):
                _attach_seam(runner, vllm_config, config)
            return result

        return load_model

    LOAD_MODEL.bind(runner, wrap_load_model)


def _attach_seam(runner: Any, vllm_config: Any, config: AsdConfig) -> None:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    if type(runner.rejection_sampler) is not RejectionSampler:
        raise AsdConfigError(
            f"ASD cannot be combined with {vllm_config.model_config.model}, which brings its own sampler: "
            "drop rejection_sample_method 'asd'"
        )
    seam = V2Seam(make_verifier(runner, vllm_config, config, runner.max_num_reqs))
    APPLIED.apply(REJECTION_KERNEL, RelaxedRejectionKernel)
    if config.asd_sampling == "gumbel":
        require_noise()
        APPLIED.apply(REJECTION_SAMPLE, lambda sample: with_arguments(sample, _couple))
    EXECUTE_MODEL.bind(runner, seam.wrap_execute_model)
    SAMPLE.bind(runner, seam.wrap_sample)
    SAMPLE_TOKENS.bind(runner, seam.wrap_sample_tokens)
    runner.asd_verifier = seam.verifier


class V2Seam(Seam):
    """What one V2 runner needs between its steps."""

    def __init__(self, verifier: Verifier) -> None:
        """Hold the verifier that serves the runner."""
        super().__init__(verifier)
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
            self._report = self.verifier.finish(emitted_ids(*result[:2])) if active else None
            return result

        return sample

    def relax(self, blocks: DraftBlocks) -> None:
        """Decide the next chunk of the step; vLLM verifies at most 1 GiB of logits at a time."""
        first_row, self._next_row = self._next_row, self._next_row + blocks.cu_num_draft.shape[0]
        # q is at most K = width - 1, and no request's gate is above the server's.
        clean = free_of_nan(blocks, self.verifier.config.largest_gate * blocks.width)
        self.verifier.relax(blocks, first_row, clean)

    def couple(self, arguments: dict[str, Any]) -> None:
        """Perturb the next chunk's coupled rows, if any, in the arguments of ``rejection_sample``."""
        coupled = self.verifier.coupled_rows(self._next_row, arguments["idx_mapping"].shape[0])
        if coupled is not None:
            # A pricing that looks ahead decides by noise of positions that it then gives up.
            perturb(arguments, coupled, fresh=self.verifier.config.asd_pricing != "remaining")

    def rehearse(self, runner: Any) -> None:
        """Compile what a step runs, for the logits as they come and as vLLM's processors leave them."""
        width = runner.num_speculative_steps + 1
        for dtype in {runner.dtype, torch.float32}:
            self._next_row = 0
            self.verifier.rehearse(num_rows=1)
            logits = torch.zeros(width, runner.vocab_size, dtype=dtype, device=runner.device)
            rehearse(self, logits, width)
            self.verifier.finish(torch.full((1, width), -1, device=runner.device))


def _couple(arguments: dict[str, Any]) -> None:
    seam = current.get()
    if isinstance(seam, V2Seam):
        seam.couple(arguments)


def emitted_ids(sampler_output: Any, num_sampled: Tensor) -> Tensor:
    """Read what a step emitted.

    Args:
        sampler_output: Its ``sampled_token_ids`` [R, W] are uninitialised behind the emitted tokens.
        num_sampled: [R] int, emitted tokens per row; 0 for prefills that are not complete.

    Returns:
        [R, W] int64, padded with -1.
    """
    sampled: Tensor = sampler_output.sampled_token_ids
    column = torch.arange(sampled.shape[1], device=sampled.device)
    return torch.where(column < num_sampled.unsqueeze(1), sampled, -1)
