"""vLLM's real schedulers without an engine: what the worker would answer is given by hand."""

from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from vllm_asd.config import AsdConfig
from vllm_asd.telemetry.step_report import StepBlocks
from vllm_asd.upstream import scheduler as seam
from vllm_asd.upstream import way_back
from vllm_asd.upstream.commit import Notice, notice_of

BLOCK_SIZE = 16
NUM_DRAFT = 4
EOS = 2


class Driver:
    """Runs a scheduler with the seam attached, as vLLM's engine core does."""

    def __init__(self, model: Path, drafter: Path, is_async: bool, num_blocks: int = 100) -> None:
        arguments = EngineArgs(
            model=str(model),
            max_model_len=256,
            max_num_seqs=8,
            block_size=BLOCK_SIZE,
            async_scheduling=is_async,
            per_request_spec_decode_metrics="detailed",
            speculative_config={
                "method": "draft_model",
                "model": str(drafter),
                "num_speculative_tokens": NUM_DRAFT,
            },
        )
        config = arguments.create_engine_config()
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self.scheduler: Any = (AsyncScheduler if is_async else Scheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            log_stats=True,
        )
        seam.attach(self.scheduler, AsdConfig())

    def add(
        self, request_id: str = "a", max_tokens: int = 50, resumable: bool = False, prompt: int = 20
    ) -> None:
        """Add a request, or the next chunk of a session."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        params.update_from_generation_config({}, EOS)
        self.scheduler.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=list(range(10, 10 + prompt)),
                sampling_params=params,
                pooling_params=None,
                resumable=resumable,
                block_hasher=self._hasher,
            )
        )

    def schedule(self) -> Any:
        """Start a step; the drafts are as many as there may be."""
        return self.scheduler.schedule()

    def update(
        self,
        schedule: Any,
        sampled: dict[str, list[int]],
        blocks: StepBlocks | None = None,
        invalid_block_ids: set[int] | None = None,
    ) -> Any:
        """End a step with these tokens; gives the outputs by request and the counters."""
        ids = list(schedule.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[list(sampled.get(request_id, [])) for request_id in ids],
        )
        if invalid_block_ids is not None:
            output.kv_connector_output = KVConnectorOutput(invalid_block_ids=invalid_block_ids)
        if blocks is not None:
            setattr(output, way_back.ATTRIBUTE, blocks)
        (sent,) = self.scheduler.update_from_output(schedule, output).values()
        return {item.request_id: item for item in sent.outputs}, sent.scheduler_stats.asd

    def draft(self, *request_ids: str) -> None:
        """Give requests their drafts, where vLLM does not put placeholders."""
        for request_id in request_ids:
            self.scheduler.requests[request_id].spec_token_ids = [7] * NUM_DRAFT


def notice(schedule: Any) -> Notice:
    """Read what a schedule tells the worker."""
    found = notice_of(schedule)
    assert found is not None
    return found
