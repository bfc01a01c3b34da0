"""A whole run from settings to report."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from vllm_asd.tools.bench.fly import fly_unavailable
from vllm_asd.tools.bench.markdown import to_markdown
from vllm_asd.tools.bench.plots import draw_all
from vllm_asd.tools.bench.progress import say
from vllm_asd.tools.bench.report import build_report, read_profiles
from vllm_asd.tools.bench.results import Results
from vllm_asd.tools.bench.run import Runner, environment
from vllm_asd.tools.bench.settings import BenchError, Settings, Speculation, digest
from vllm_asd.tools.bench.store import Store
from vllm_asd.tools.bench.workload import read_prompts, read_trace, write_prompts
from vllm_asd.tools.demo.prompts import PROMPTS
from vllm_asd.tools.server.environment import server_environment
from vllm_asd.tools.server.process import ProcessGroup
from vllm_asd.tools.whole_file import write_whole

_PROFILE = (sys.executable, "-m", "vllm_asd.tools.bench.profile")
_PROFILE_TOKENS = 64


def conduct(settings: Settings, output: Path, *, built_in: bool) -> Iterator[str]:
    """Measure and report.

    Args:
        settings: Of the run.
        output: Folder for the results.
        built_in: Ask what the demo asks, because the user has given no prompts.

    Yields:
        Lines for the user.

    Raises:
        BenchError: Bad input, or a failed measurement.
        ServerDied: A server did not start.
    """
    prompts: list[str] = []
    if built_in:
        prompts = [prompt.text for prompt in PROMPTS]
    elif settings.data.endswith(".jsonl"):
        path = Path(settings.data)
        prompts = read_prompts(path)
        settings = dataclasses.replace(settings, data_sha256=digest(path))
    if settings.trace is not None:
        if not prompts:
            raise BenchError("--trace needs prompts: give --data a JSONL file")
        read_trace(Path(settings.trace), settings.trace_requests)
    store = Store(output, settings)
    why_not = {speculation.label: fly_unavailable(speculation) for speculation in settings.speculations}
    runner = Runner(
        settings, store, prompts, fly=[name for name, reason in why_not.items() if reason is None]
    )
    runner.run()
    if settings.profile:
        for speculation in settings.speculations:
            profile_step(settings, speculation, prompts, store)
    results = Results(store.read_all(runner.cells))
    profiles = read_profiles(output, [speculation.label for speculation in settings.speculations])
    notes = [*(reason for reason in why_not.values() if reason), *runner.notes]
    report = build_report(settings, results, profiles, notes)
    write_whole(output / "report.json", json.dumps(report, indent=2) + "\n")
    write_whole(output / "report.md", to_markdown(report))
    draw_all(report, results, output)
    yield f"{output / 'report.md'}, report.json and pictures written"


def profile_step(settings: Settings, speculation: Speculation, prompts: list[str], store: Store) -> None:
    """Time the parts of a step in a process of its own, unless that is done already.

    Raises:
        BenchError: It failed.
    """
    result = store.folder / f"profile-{speculation.label}.json"
    if result.exists():
        return
    say(f"timing the parts of a step with {speculation.label}")
    data, part = store.scratch / "profile-prompts.jsonl", store.scratch / result.name
    asked = (prompts or [prompt.text for prompt in PROMPTS])[: settings.concurrency[-1]]
    write_prompts(asked, [_PROFILE_TOKENS] * len(asked), data)
    command = [*_PROFILE, "--model", settings.model, "--speculative-config", json.dumps(speculation.config)]
    command += ["--data", str(data), "--batch", ",".join(map(str, settings.concurrency))]
    command += ["--max-tokens", str(_PROFILE_TOKENS), "--output", str(part), "--"]
    command += settings.server_args or ["--max-num-seqs", str(settings.concurrency[-1])]
    base = {**os.environ, **environment(settings)}
    log = store.scratch / f"profile-{speculation.label}.log"
    group = ProcessGroup(command, log, server_environment(base, settings.kv_cache_gib, None))
    try:
        while group.returncode is None:
            time.sleep(0.2)
    finally:
        group.stop()
    if group.returncode or not part.exists():
        raise BenchError(
            f"timing the parts of a step failed (--no-profile leaves it out):\n{group.log_tail(3)}"
        )
    part.replace(result)
