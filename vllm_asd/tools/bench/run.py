"""Carry a run out: start each server, drive it through its cells, keep each result."""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vllm_asd.tools.bench.cells import ASD, FLY, NONE, Cell, Visit, plan_visits
from vllm_asd.tools.bench.client import BenchClient
from vllm_asd.tools.bench.counters import Counters
from vllm_asd.tools.bench.fly import fly_config
from vllm_asd.tools.bench.load import bench_arguments, read_result
from vllm_asd.tools.bench.memory import PeakMemory
from vllm_asd.tools.bench.progress import RunProgress
from vllm_asd.tools.bench.settings import SERVED_NAME, BenchError, Settings
from vllm_asd.tools.bench.store import Store
from vllm_asd.tools.bench.workload import Arrivals, match_lengths, read_trace, scale_trace, write_prompts
from vllm_asd.tools.server import ServerDied, VllmServer

_WARM_UP_TOKENS = 16
# vLLM counts a step just after it has sent the step's tokens.
_SETTLE_S = 0.5


class Runner:
    """One run over its cells."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        prompts: list[str],
        *,
        fly: Collection[str] = (),
        server: Callable[..., VllmServer] = VllmServer,
        client: Callable[..., BenchClient] = BenchClient,
    ) -> None:
        """Plan the run.

        Args:
            settings: Of the run.
            store: Where results go.
            prompts: What is asked, repeated when they are too few; empty for vLLM's own data sets.
            fly: Labels of the drafters that vLLM's own lossy method is measured with, too.
            server: Makes a server (tests).
            client: Makes a load generator (tests).
        """
        self.visits = plan_visits(settings, fly)
        self._settings = settings
        self._store = store
        self._prompts = prompts
        self._server, self._client = server, client
        self.notes: list[str] = []

    @property
    def cells(self) -> list[Cell]:
        """Every cell of the run in order."""
        return [cell for visit in self.visits for cell in visit.cells]

    def run(self) -> None:
        """Measure what is not there yet.

        Raises:
            BenchError: A request failed, or the load generator did.
            ServerDied: A server did not start.
        """
        todo = [cell for cell in self.cells if not self._store.has(cell)]
        if not todo:
            return
        progress = RunProgress(self._settings, todo, done=len(self.cells) - len(todo))
        log = self._store.scratch / "bench-serve.log"
        with self._client(log, environment(self._settings)) as client:
            for visit in self.visits:
                if any(not self._store.has(cell) for cell in visit.cells):
                    self._visit_if_possible(visit, client, progress)

    def _visit_if_possible(self, visit: Visit, client: BenchClient, progress: RunProgress) -> None:
        """A vLLM that refuses its own `fly` must not cost the rest of the run."""
        try:
            self._visit(visit, client, progress)
        except ServerDied as error:
            if not visit.server.endswith(f"-{FLY}"):
                raise
            reason = str(error).splitlines()[-1]
            self.notes.append(f"vLLM's own lossy method `fly` is not measured as {visit.server}: {reason}")

    def _visit(self, visit: Visit, client: BenchClient, progress: RunProgress) -> None:
        server = self._server(
            self._settings.model,
            server_arguments(self._settings, visit.server),
            kv_cache_gib=self._settings.kv_cache_gib,
            environment=environment(self._settings),
            log_path=self._store.scratch / f"server-{visit.server}.log",
            start_timeout_s=3600.0,
        )
        with server, progress.visit(visit.server):
            warm: set[int] = set()
            for cell in visit.cells:
                if self._store.has(cell):
                    continue
                if cell.concurrency not in warm:
                    self._warm_up(cell, server, client)
                    warm.add(cell.concurrency)
                start = time.monotonic()
                record = self._measure(cell, server, client)
                self._store.write(cell, record)
                progress.finished(cell, record["output_tokens"], time.monotonic() - start)

    def _warm_up(self, cell: Cell, server: VllmServer, client: BenchClient) -> None:
        """One short request per user, under the arm that runs the most code; its result is thrown away."""
        arm = cell.arm if cell.arm in (NONE, FLY) else ASD
        warm = dataclasses.replace(cell, arm=arm, work="fixed")
        self._drive(warm, server, client, warm_up_tokens=min(_WARM_UP_TOKENS, self._settings.max_tokens))

    def _measure(self, cell: Cell, server: VllmServer, client: BenchClient) -> dict[str, Any]:
        arrivals = self._arrivals() if cell.work == "trace" else None
        started = datetime.now(UTC).isoformat(timespec="seconds")
        before = Counters.read(server.metrics())
        with PeakMemory(server.process_ids) as memory:
            result = self._drive(cell, server, client, arrivals=arrivals)
        time.sleep(_SETTLE_S)
        counted = Counters.read(server.metrics()).since(before)
        return {
            "cell": dataclasses.asdict(cell),
            "started": started,
            "server_start_s": round(server.start_s, 1),
            **result,
            "counters": counted.as_json(),
            "memory_mib": {"resident": round(memory.resident_mib), "gpu": memory.gpu_mib},
            "arrivals": arrivals and dataclasses.asdict(arrivals),
        }

    def _drive(
        self,
        cell: Cell,
        server: VllmServer,
        client: BenchClient,
        *,
        arrivals: Arrivals | None = None,
        warm_up_tokens: int | None = None,
    ) -> dict[str, Any]:
        prompts, result = self._store.scratch / "prompts.jsonl", self._store.scratch / "result.json"
        if self._prompts:
            self._write_prompts(cell, prompts, arrivals)
        result.unlink(missing_ok=True)
        client.run(
            bench_arguments(cell, self._settings, server.base_url, prompts, result, arrivals, warm_up_tokens)
        )
        try:
            return read_result(result)
        except BenchError as error:
            raise BenchError(f"{cell.name}: {error} (server's log: {server.log_path})") from None

    def _write_prompts(self, cell: Cell, path: Path, arrivals: Arrivals | None) -> None:
        if arrivals is not None and self._settings.trace is not None:
            trace = read_trace(Path(self._settings.trace), self._settings.trace_requests)
            write_prompts(match_lengths(self._prompts, trace), arrivals.output_tokens, path)
            return
        number = self._settings.requests_at(cell.concurrency)
        repeated = (self._prompts * (number // len(self._prompts) + 1))[:number]
        write_prompts(repeated, [self._settings.max_tokens] * number, path)

    def _arrivals(self) -> Arrivals:
        """Scale the trace by the plain server's first cell, so that a resumed run agrees."""
        settings = self._settings
        assert settings.trace is not None
        plain = self._store.read(Cell(NONE, NONE, settings.concurrency[-1], "fixed", 0))
        trace = read_trace(Path(settings.trace), settings.trace_requests)
        return scale_trace(trace, settings.max_tokens, plain["output_throughput"], settings.trace_load)


def server_arguments(settings: Settings, server: str) -> list[str]:
    """The arguments of `vllm serve` for one server: the same for all but the speculative configuration."""
    arguments = ["--served-model-name", SERVED_NAME, "--no-enable-prefix-caching"]
    arguments += ["--max-num-seqs", str(settings.concurrency[-1]), *settings.server_args]
    for speculation in settings.speculations:
        if server == speculation.label:
            arguments += ["--speculative-config", json.dumps(speculation.config)]
        if server == f"{speculation.label}-{FLY}":
            arguments += ["--speculative-config", json.dumps(fly_config(speculation))]
    return arguments


def environment(settings: Settings) -> dict[str, str]:
    """Let a model that is no folder be looked up, unless the caller has forbidden it; hand the key on."""
    offline = "1" if Path(settings.model).is_dir() else "0"
    # `vllm bench serve` reads its key from a variable of OpenAI's.
    key = os.environ.get("VLLM_API_KEY")
    return {
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", offline),
        **({"OPENAI_API_KEY": key} if key else {}),
    }
