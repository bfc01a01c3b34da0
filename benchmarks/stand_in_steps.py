"""Steps as vLLM's two runners bring them to the seams, without vLLM: same tensors, types and order of calls.

The types are those of vLLM 0.32. V1 (``v1/worker/gpu_model_runner.py``, ``v1/sample/rejection_sampler.py``):
drafts, ``cu_num_draft_tokens`` and the sampled ids int32, the argmax int64, the logits float32. V2
(``v1/worker/gpu``): ``draft_sampled``, ``cu_num_logits``, ``expanded_local_pos`` and ``num_sampled`` int32,
the index mappings, positions, seeds and sampled ids int64; the logits in the model's type, or in float32 once
a processor has touched them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from vllm_asd.config import AsdConfig
from vllm_asd.kernels.blocks import VOCAB_BLOCK
from vllm_asd.phase import ThinkMarkers
from vllm_asd.upstream import v1_runner, v2_runner
from vllm_asd.upstream.v1_runner import V1Seam
from vllm_asd.upstream.v2_kernels import RelaxedRejectionKernel
from vllm_asd.upstream.v2_runner import V2Seam
from vllm_asd.verification import DraftShape, Verifier

MARKERS = ThinkMarkers(start=1, end=2)
CPU = torch.device("cpu")
_MAX_NUM_REQS = 256  # more than any step brings


@dataclass(frozen=True)
class Server:
    """What is fixed when a server starts.

    Attributes:
        config: The plugin's settings.
        detailed: The metrics level.
        shape: K and the vocabulary.
        capacity: Requests to make room for.
        dtype: The model's.
        drafter_vocab_size: Tokens in the logits that V2 keeps of the drafter; None when it keeps none.
    """

    config: AsdConfig
    detailed: bool = False
    shape: DraftShape = field(default=DraftShape(max_num_draft_tokens=5, vocab_size=67))
    capacity: int = 8
    dtype: torch.dtype = torch.bfloat16
    drafter_vocab_size: int | None = None

    def verifier(self) -> Verifier:
        """Allocate one."""
        return Verifier(self.config, CPU, self.capacity, self.shape, MARKERS, self.detailed)


@dataclass(frozen=True)
class Rows:
    """One step's rows.

    Attributes:
        ids: R request ids.
        num_draft: R draft lengths.
        sampled: Those of the rows that vLLM samples at a temperature above 0.
    """

    ids: Sequence[str]
    num_draft: Sequence[int]
    sampled: frozenset[str] = frozenset()


@dataclass
class _Sampling:
    """As much of vLLM's ``SamplingMetadata`` as the seam replaces."""

    temperature: Tensor
    all_greedy: bool
    all_random: bool
    generators: dict[int, torch.Generator] = field(default_factory=dict)


class V1Steps:
    """Model Runner V1."""

    def __init__(self, server: Server) -> None:
        """Make a runner and the seam that serves it."""
        self.server = server
        runner = SimpleNamespace(device=CPU, input_batch=SimpleNamespace(req_ids=[]))
        self.seam = V1Seam(runner, server.verifier())

    def step(self, rows: Rows, dtype: torch.dtype = torch.float32, first_rows: Sequence[int] = ()) -> None:
        """Run one step; V1 knows one type of logits and no chunks."""
        del dtype, first_rows
        num_rows, num_flat = len(rows.ids), sum(rows.num_draft)
        width = self.server.shape.max_num_draft_tokens
        runner = self.seam.runner
        runner.input_batch.req_ids = list(rows.ids)
        runner.discard_request_mask = SimpleNamespace(gpu=torch.zeros(num_rows + 3, dtype=torch.bool))
        sampled_ids = torch.full((num_rows, width + 1), -1, dtype=torch.int32)
        logits = torch.zeros(num_flat, self.server.shape.vocab_size)
        cu = torch.tensor(rows.num_draft).cumsum(0).to(torch.int32)
        drafts = torch.zeros(num_flat, dtype=torch.int32)
        argmax = torch.zeros(num_flat, dtype=torch.int64)
        processed = self.seam.wrap_logits_processors(lambda logits: logits)
        greedy_kernel = v1_runner._RelaxedGreedyKernel(lambda *_: None)
        temperature = torch.tensor([float(i in rows.sampled) for i in rows.ids])
        sampling = _Sampling(temperature, all_greedy=not rows.sampled, all_random=False)

        def sample(*_: Any) -> Any:
            if num_flat:
                arguments = {
                    "num_draft_tokens": list(rows.num_draft),
                    "target_logits": processed(logits),
                    "sampling_metadata": sampling,
                }
                v1_runner._couple(arguments)
                greedy_kernel(sampled_ids, cu, drafts, argmax, None, None, max(rows.num_draft), None, None)
            return SimpleNamespace(sampled_token_ids=sampled_ids)

        self.seam.wrap_sample(sample)(None, None)


class V2Steps:
    """Model Runner V2."""

    def __init__(self, server: Server) -> None:
        """Make a runner and the seam that serves it."""
        self.server = server
        states = SimpleNamespace(
            temperature=SimpleNamespace(gpu=torch.ones(_MAX_NUM_REQS)),
            seeds=SimpleNamespace(gpu=torch.zeros(_MAX_NUM_REQS, dtype=torch.int64)),
        )
        sampler = SimpleNamespace(sampling_states=states, use_fp64_gumbel=False)
        narrow = server.drafter_vocab_size
        speculator = SimpleNamespace(draft_logits=None if narrow is None else torch.zeros(1, 1, narrow))
        runner = SimpleNamespace(device=CPU, dtype=server.dtype, sampler=sampler, speculator=speculator)
        self.seam = V2Seam(runner, server.verifier())

    def step(self, rows: Rows, dtype: torch.dtype = torch.float32, first_rows: Sequence[int] = ()) -> None:
        """Run one step.

        Args:
            rows: Its rows.
            dtype: Of the logits.
            first_rows: Where chunks begin, besides the first row.
        """
        num_rows = len(rows.ids)
        cu = torch.tensor([0, *(1 + n for n in rows.num_draft)]).cumsum(0).to(torch.int32)
        num_logits = int(cu[-1])
        logits = torch.zeros(num_logits, self.server.shape.vocab_size, dtype=dtype)
        drafts = torch.zeros(num_logits, dtype=torch.int32)
        positions = torch.zeros(num_logits, dtype=torch.int64)
        places = torch.arange(num_rows)
        expanded = places.repeat_interleave(cu.diff().to(torch.int64))
        local = torch.zeros(num_logits, dtype=torch.int32)
        sampled_ids = torch.full((num_rows, self.server.shape.max_num_draft_tokens + 1), 7)

        def sample(*_: Any) -> Any:
            if any(rows.num_draft):
                bounds = [0, *first_rows, num_rows]
                for first, last in itertools.pairwise(bounds):
                    here = slice(int(cu[first]), int(cu[last]))
                    chunk = cu[first : last + 1] - cu[first]
                    self._verify(
                        logits[here],
                        drafts[here],
                        chunk,
                        positions[here],
                        places[first:last],
                        expanded[here],
                        local[here],
                    )
            result = SimpleNamespace(sampled_token_ids=sampled_ids)
            return result, torch.ones(num_rows, dtype=torch.int32), None

        self.seam.wrap_sample(sample)(None, SimpleNamespace(req_ids=list(rows.ids)), None)

    def _verify(
        self,
        logits: Tensor,
        drafts: Tensor,
        cu: Tensor,
        positions: Tensor,
        places: Tensor,
        expanded: Tensor,
        local: Tensor,
    ) -> None:
        """Verify one chunk, as vLLM's ``rejection_sample`` does."""
        states = self.seam.runner.sampler.sampling_states
        arguments = {
            "target_logits": logits,
            "pos": positions,
            "idx_mapping": places,
            "expanded_idx_mapping": expanded,
            "expanded_local_pos": local,
            "temperature": states.temperature.gpu,
            "seed": states.seeds.gpu,
            "use_fp64": False,
        }
        v2_runner._couple(arguments)
        logits = arguments["target_logits"]
        seen = min(logits.shape[1], self.server.drafter_vocab_size or logits.shape[1])
        num_blocks = -(-seen // VOCAB_BLOCK)
        argmax = logits.new_zeros(logits.shape[0], num_blocks, dtype=torch.int64)
        maxima = logits.new_zeros(logits.shape[0], num_blocks, dtype=torch.float32)
        RelaxedRejectionKernel(_RejectionKernel())[(places.shape[0],)](logits, argmax, maxima, drafts, cu)


class _RejectionKernel:
    """vLLM's second kernel, which compares."""

    arg_names = (
        "target_logits_ptr",
        "target_local_argmax_ptr",
        "target_local_max_ptr",
        "draft_sampled_ptr",
        "cu_num_logits_ptr",
    )

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_: None
