"""Worker, V1 model runner: the ledger follows the scheduler, the rule stands before the greedy kernel.

vLLM's ``RejectionSampler`` computes the target's argmax and hands it, with the drafts, to one kernel per
request kind. At the approved positions the argmax is rewritten to the draft token; the kernel, the sampled
rows, the logprobs and the bonus token stay vLLM's. (vLLM 0.33's own lossy method, FLy, enters the same way.)

What is read of vLLM's tensors, and which elements it leaves unwritten: ``target_argmax`` [N] (all written,
also for sampled rows), the logits behind it [N, V] (all), ``draft_token_ids`` [N] and
``cu_num_draft_tokens`` [R] (all), ``sampled_token_ids`` [R, K + 1] (filled with -1 before the kernels run),
``discard_request_mask`` (its first R).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from vllm_asd.batch import Emitted
from vllm_asd.config import AsdConfig
from vllm_asd.kernels import DraftBlocks
from vllm_asd.telemetry.step_report import StepReport
from vllm_asd.upstream import cpu_expand
from vllm_asd.upstream.arguments import with_arguments
from vllm_asd.upstream.patching import APPLIED, Patch
from vllm_asd.upstream.scheduled import follow_schedule
from vllm_asd.upstream.seam import Seam, make_verifier
from vllm_asd.upstream.v1_gumbel import REJECTION_SAMPLE, perturb
from vllm_asd.verification import Verifier

_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_SAMPLER = "vllm.v1.sample.rejection_sampler"

GREEDY_KERNEL = Patch(
    target=f"{_SAMPLER}:_rejection_greedy_sample",
    parameters=(
        "output_token_ids",
        "cu_num_draft_tokens",
        "draft_token_ids",
        "target_argmax",
        "bonus_token_ids",
        "is_greedy",
        "max_spec_len",
        "uniform_probs",
        "synthetic_conditional_rates",
    ),
    why="the only place that holds the argmax and the drafts before they are compared",
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    hot=True,
)

APPLY_LOGITS_PROCESSORS = Patch(
    target=f"{_SAMPLER}:RejectionSampler.apply_logits_processors",
    parameters=("self", "logits", "sampling_metadata", "metadata"),
    why="returns the very logits that vLLM takes its argmax of; the kernel is not given them",
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    instance=True,
    hot=True,
)

EXECUTE_MODEL = Patch(
    target=f"{_RUNNER}.execute_model",
    parameters=("self", "scheduler_output", "intermediate_tensors"),
    why="new and finished requests arrive here",
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    instance=True,
    hot=True,
)

SAMPLE = Patch(
    target=f"{_RUNNER}._sample",
    parameters=("self", "logits", "spec_decode_metadata"),
    why="brackets the sampling of one step, and only of real ones: warm-up calls the sampler directly",
    remove_when="vLLM lets a plugin register a rejection sample method",
    process="worker",
    instance=True,
    hot=True,
)

SAMPLE_TOKENS = Patch(
    target=f"{_RUNNER}.sample_tokens",
    parameters=("self", "grammar_output"),
    why="builds the output that travels to the scheduler; the step's report rides on it",
    remove_when="ModelRunnerOutput carries plugin data",
    process="worker",
    instance=True,
    hot=True,
)

_current: ContextVar[V1Seam | None] = ContextVar("vllm_asd_v1_seam", default=None)


def attach(runner: Any, vllm_config: Any, config: AsdConfig) -> None:
    """Give a V1 runner its seam: instance methods of this runner, and the kernel entry of its module.

    Raises:
        AsdConfigError: ``asd_scope`` is not "all" and vLLM knows no think tokens.
        PatchError: The installed vLLM is not what the records expect.
    """
    capacity = vllm_config.scheduler_config.max_num_seqs
    seam = V1Seam(runner, make_verifier(runner, vllm_config, config, capacity))
    if runner.device.type == "cpu":
        cpu_expand.mend_if_broken()
    APPLIED.apply(GREEDY_KERNEL, _RelaxedGreedyKernel)
    if config.asd_sampling == "gumbel":
        APPLIED.apply(REJECTION_SAMPLE, lambda sample: with_arguments(sample, _couple))
    APPLY_LOGITS_PROCESSORS.bind(runner.rejection_sampler, seam.wrap_logits_processors)
    EXECUTE_MODEL.bind(runner, seam.wrap_execute_model)
    SAMPLE.bind(runner, seam.wrap_sample)
    SAMPLE_TOKENS.bind(runner, seam.wrap_sample_tokens)
    runner.asd_seam = seam
    runner.asd_verifier = seam.verifier


class V1Seam(Seam):
    """What one V1 runner needs between its steps."""

    def __init__(self, runner: Any, verifier: Verifier) -> None:
        """Hold the runner that is served and the verifier that serves it."""
        super().__init__(verifier)
        self.runner = runner
        self._logits: Any = None

    def wrap_execute_model(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Follow the scheduler's admissions and releases before the step."""

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            follow_schedule(self.verifier, scheduler_output)
            return original(scheduler_output, *args, **kwargs)

        return execute_model

    def wrap_logits_processors(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Remember the logits that the argmax is taken of. For greedy rows vLLM changes nothing after."""

        def apply_logits_processors(*args: Any, **kwargs: Any) -> Any:
            logits = original(*args, **kwargs)
            # Only inside a step: those of vLLM's profiling would stay alive until the first one.
            if _current.get() is self:
                self._logits = logits
            return logits

        return apply_logits_processors

    def wrap_sample(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Open the step, let vLLM sample, close the step with what it emitted."""

        def sample(logits: Any, spec_decode_metadata: Any) -> Any:
            active = self.verifier.begin(self.runner.input_batch.req_ids)
            token = _current.set(self if active else None)
            try:
                output = original(logits, spec_decode_metadata)
            finally:
                _current.reset(token)
                self._logits = None
            self._report = self._finish(output.sampled_token_ids) if active else None
            return output

        return sample

    def warm_up(self) -> None:
        """Run the rule once on a row that belongs to no request; see :meth:`Seam.warm_up`."""
        device, shape = self.runner.device, self.verifier.shape
        width = shape.max_num_draft_tokens
        drafts = torch.zeros(width, dtype=torch.int32, device=device)
        blocks = DraftBlocks(
            logits=torch.zeros(width, shape.vocab_size, device=device),
            argmax=torch.zeros(width, dtype=torch.int64, device=device),
            draft_ids=drafts,
            cu_num_draft=torch.full((1,), width, dtype=torch.int32, device=device),
            width=width,
        )
        emitted = drafts.new_full((1, width + 1), -1)
        discarded = torch.zeros(1, dtype=torch.bool, device=device)
        step = Emitted(emitted, discarded=discarded)
        self.verifier.rehearse(lambda: self.verifier.relax(blocks), step)

    def couple(self, arguments: dict[str, Any]) -> None:
        """Perturb the step's coupled rows in the arguments of ``rejection_sample``, if there are any."""
        coupled = self.verifier.coupled_rows()
        if coupled is not None:
            perturb(arguments, coupled)
            self._logits = arguments["target_logits"]

    def relax(self, cu_num_draft: Any, draft_ids: Any, argmax: Any, width: int) -> None:
        """Rewrite ``argmax`` [N] in place at the approved positions."""
        logits, self._logits = self._logits, None
        if logits is not None:
            self.verifier.relax(DraftBlocks(logits, argmax, draft_ids, cu_num_draft, width))

    def _finish(self, ids: Any) -> StepReport | None:
        discarded = self.runner.discard_request_mask.gpu[: ids.shape[0]]
        return self.verifier.finish(Emitted(ids, discarded=discarded))


def _couple(arguments: dict[str, Any]) -> None:
    seam = _current.get()
    if seam is not None:
        seam.couple(arguments)


class _RelaxedGreedyKernel:
    """vLLM's kernel dispatcher with the rule before it; without an open ASD step it is only the former."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(
        self,
        output_token_ids: Any,
        cu_num_draft_tokens: Any,
        draft_token_ids: Any,
        target_argmax: Any,
        bonus_token_ids: Any,
        is_greedy: Any,
        max_spec_len: int,
        *rest: Any,
    ) -> Any:
        seam = _current.get()
        if seam is not None:
            seam.relax(cu_num_draft_tokens, draft_token_ids, target_argmax, max_spec_len)
        return self._original(
            output_token_ids,
            cu_num_draft_tokens,
            draft_token_ids,
            target_argmax,
            bonus_token_ids,
            is_greedy,
            max_spec_len,
            *rest,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
