"""Nothing is compiled in service: traffic asks Triton for no kernel that the warm-up did not ask for."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks.device_path import Launch, device_path
from benchmarks.stand_in_steps import Rows, Server, V1Steps, V2Steps
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.verification import DraftShape

SIZES = (1, 3, 17, 200)
COMMON = {
    "_decide_kernel",
    "_charge_kernel",
    "_detail_kernel",
    "_scope_kernel",
    "_follow_kernel",
    "_guard_kernel",
}
KERNELS = {V1Steps: COMMON, V2Steps: COMMON | {"_nan_kernel", "_perturb_kernel"}}


def servers() -> Iterator[Server]:
    """Every setting that a kernel knows of, on its own and together."""
    choices: dict[str, tuple[object, ...]] = {
        "asd_scope": ("all", "reasoning", "phases"),
        "asd_guard": ("off", "on"),
        "asd_refill": (0.0, 0.1),
        "asd_pricing": ("remaining", "realized"),
        "asd_sampling": ("off", "gumbel"),
    }
    for values in itertools.product(*choices.values()):
        config = AsdConfig.model_validate(dict(zip(choices, values, strict=True)))
        yield Server(config)
        yield Server(config, detailed=True)
    for num_draft, vocab_size in ((1, 64), (16, 9001), (40, 67)):
        yield Server(AsdConfig(), True, DraftShape(num_draft, vocab_size), dtype=torch.float16)
    yield Server(AsdConfig(), shape=DraftShape(3, 9001), drafter_vocab_size=8000)


class Traffic:
    """Requests that come and go, each with its own limits, drafts of every length, and steps taken back."""

    def __init__(self, steps: V1Steps | V2Steps, seed: int) -> None:
        self.steps = steps
        self.rng = random.Random(seed)
        self.number = 0
        self.running: dict[str, bool] = {}

    def limits(self) -> RequestLimits:
        """The server's, with a guard or without, or strict."""
        given = self.steps.server.config.limits
        return self.rng.choice([given, replace(given, guard=not given.guard), replace(given, budget=0.0)])

    def step(self, num_rows: int) -> None:
        """One step of that many requests, of which one is new."""
        rng, server, verifier = self.rng, self.steps.server, self.steps.seam.verifier
        self.number += 1
        for request_id in rng.sample(sorted(self.running), rng.randint(0, min(2, len(self.running)))):
            verifier.roll_back(request_id, self.number - rng.randint(1, 3), rng.choice([None, 0, 1, 2]))
        verifier.start_step(self.number, self.number - 4)
        gone = sorted(self.running)[num_rows - 1 :]
        verifier.release(gone)
        for request_id in gone:
            del self.running[request_id]
        while len(self.running) < num_rows:
            request_id = f"step {self.number} request {len(self.running)}"
            sampled = server.config.asd_sampling == "gumbel" and rng.random() < 0.5
            self.running[request_id] = sampled
            verifier.admit(request_id, self.limits(), [0, 3], [5, 1, 6], sampled=sampled)
        width = server.shape.max_num_draft_tokens
        ids = rng.sample(sorted(self.running), num_rows)
        longest = rng.randint(0, width)
        drafts = [rng.randint(0, longest) for _ in ids]
        first_rows = sorted(rng.sample(range(1, num_rows), rng.randint(0, min(2, num_rows - 1))))
        sampled_ids = frozenset(i for i in ids if self.running[i])
        dtype = rng.choice([server.dtype, torch.float32])
        self.steps.step(Rows(ids, drafts, sampled_ids), dtype, first_rows)


@pytest.mark.parametrize("runner", [V1Steps, V2Steps])
def test_traffic_compiles_nothing(runner: type[V1Steps | V2Steps]) -> None:
    """Of all servers: the types and constants of every launch were those of a launch of the warm-up."""
    seen: set[str] = set()
    compiled: dict[Launch, Server] = {}
    with torch.inference_mode():
        for seed, server in enumerate(servers()):
            launches: list[Launch] = []
            with device_path(launches.append):
                steps = runner(server)
                steps.seam.warm_up()
                warm = set(launches)
                launches.clear()
                traffic = Traffic(steps, seed)
                for num_rows in [*SIZES, 17, 3, 1, 17]:
                    traffic.step(num_rows)
            compiled.update({launch: server for launch in set(launches) - warm})
            seen |= {launch.kernel for launch in launches}
    assert not compiled, f"{len(compiled)}: {next(iter(compiled.items()))}"
    assert seen == KERNELS[runner]
