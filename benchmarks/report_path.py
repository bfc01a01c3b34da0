"""What the report costs in a step, before and after: this tree against another revision.

Three parts, each timed where the engine waits for it: `resolve` (the worker picks the rows of a finished
copy), `pickle` (to the scheduler's process and back), `update` (all that the plugin does in the scheduler's
`update_from_output`: adding up and counting; the newer one also finds out what was not kept). A process of
each revision answers in ABBA order. One row in ten has an exception; K = 7, E = 2; the tables lie on the CPU.

    python benchmarks/report_path.py --output benchmarks/results/report-path.json

Progress goes to stderr; the last line of stdout is the result, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "vllm-asd/benchmark-report-path/1"
ROWS = (16, 256, 1024)
LEVELS = ("none", "detailed")
PARTS = ("resolve", "pickle", "update")
SIDES = ("old", "new")
NUM_DRAFT, NUM_DETAILS, ACCEPTED, EXCEPTION_AT = 7, 2, 5, 1
KEPT = [5] * (ACCEPTED + 1)


def main() -> None:
    """Measure every case and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", default="2c75f6f", help="the older revision")
    parser.add_argument("--rounds", type=int, default=30, help="of old, new, new, old")
    parser.add_argument("--output", type=Path, help="also write the result here")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    result: dict[str, Any] = {"schema": SCHEMA, "provenance": _provenance(args.against), "cases": []}
    with _worktree(args.against) as old, _process("old", old) as before, _process("new", ROOT) as after:
        for level in LEVELS:
            for num_rows in ROWS:
                case = _measure(before, after, num_rows, level, args.rounds)
                result["cases"].append(case)
                print(_line(case), file=sys.stderr, flush=True)
    result["provenance"]["load_average_at_end"] = round(os.getloadavg()[0], 2)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


def _measure(
    before: subprocess.Popen[str], after: subprocess.Popen[str], num_rows: int, level: str, rounds: int
) -> dict[str, Any]:
    """Ask both processes in turn; the first round warms up."""
    found: dict[str, dict[str, list[float]]] = {side: {part: [] for part in PARTS} for side in SIDES}
    for round_number in range(rounds + 1):
        for side, process in (("old", before), ("new", after), ("new", after), ("old", before)):
            times = _ask(process, {"rows": num_rows, "level": level})
            if round_number:
                for part in PARTS:
                    found[side][part].append(times[part])
    microseconds = {
        side: {part: _quartiles(values) for part, values in parts.items()} for side, parts in found.items()
    }
    return {"rows": num_rows, "level": level, "microseconds": microseconds}


def _quartiles(seconds: list[float]) -> dict[str, float]:
    q1, median, q3 = statistics.quantiles(seconds, n=4)
    return {"median": round(median * 1e6, 1), "q1": round(q1 * 1e6, 1), "q3": round(q3 * 1e6, 1)}


def _line(case: dict[str, Any]) -> str:
    old, new = (case["microseconds"][side] for side in SIDES)
    parts = (f"{part} {old[part]['median']:.0f} -> {new[part]['median']:.0f} us" for part in PARTS)
    return f"R={case['rows']:<5} {case['level']:<9} {', '.join(parts)}"


@contextmanager
def _worktree(revision: str) -> Iterator[Path]:
    """Check the older revision out beside this one, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "old"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", folder, revision], cwd=ROOT, check=True
        )
        try:
            yield folder
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


@contextmanager
def _process(side: str, root: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the code of one tree, one call at a time."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", side]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, cwd=root, text=True) as process:
        if Path(json.loads(_read(process))["package"]).parents[1] != root.resolve():
            raise SystemExit(f"the {side} process does not run the code of its own tree")
        yield process
        process.stdin.close()  # type: ignore[union-attr]


def _read(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline()  # type: ignore[union-attr]
    if not line:
        raise SystemExit("a measuring process has ended")
    return line


def _ask(process: subprocess.Popen[str], case: dict[str, Any]) -> dict[str, float]:
    print(json.dumps(case), file=process.stdin, flush=True)
    times: dict[str, float] = json.loads(_read(process))
    return times


def _provenance(against: str) -> dict[str, Any]:
    from vllm_asd.tools.provenance import provenance

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        **provenance(("python", "benchmarks/report_path.py")),
        "against": against,
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "num_draft_tokens": NUM_DRAFT,
        "num_details": NUM_DETAILS,
        "rows_with_an_exception": 0.1,
    }


def serve(side: str) -> None:
    """Answer with the seconds of each part, a line for a line."""
    import vllm_asd

    torch.set_num_threads(1)
    make = make_old if side == "old" else make_new
    steps: dict[tuple[int, str], Step] = {}
    print(json.dumps({"package": vllm_asd.__file__}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        key = case["rows"], case["level"]
        if key not in steps:
            steps[key] = make(*key)
        print(json.dumps(steps[key].time()), flush=True)


@dataclass
class Step:
    """One step on its way, the same again and again.

    Attributes:
        resolve: Makes what is sent.
        update: Takes what was received.
    """

    resolve: Callable[[], Any]
    update: Callable[[Any], Any]

    def time(self) -> dict[str, float]:
        """Seconds of each part."""
        start = time.perf_counter()
        sent = self.resolve()
        resolved = time.perf_counter()
        received = pickle.loads(pickle.dumps(sent, pickle.HIGHEST_PROTOCOL))
        pickled = time.perf_counter()
        self.update(received)
        return {
            "resolve": resolved - start,
            "pickle": pickled - resolved,
            "update": time.perf_counter() - pickled,
        }


@dataclass(slots=True)
class Output:
    """What the seam reads of an ``EngineCoreOutput``."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: None = None
    spec_decode_metrics: None = None


class Request:
    """What the seam reads of vLLM's ``Request``."""

    num_output_tokens = 100

    def __init__(self, request_id: str) -> None:
        """A greedy request under the server's limits."""
        self.request_id = request_id
        self.sampling_params = SimpleNamespace(temperature=0.0, extra_args=None, stop=None)
        self.spec_decode_metrics = None
        self.output_token_ids = [5] * self.num_output_tokens + KEPT

    def is_finished(self) -> bool:
        """It goes on."""
        return False


def make_ids(num_rows: int) -> list[str]:
    """Ids as long as vLLM's."""
    return [f"chatcmpl-{row:032x}-{row:08x}" for row in range(num_rows)]


def make_scheduler(ids: list[str], level: str) -> Any:
    """What the seam reads of vLLM's scheduler."""
    return SimpleNamespace(
        spec_decode_metrics_level=level,
        log_stats=True,
        requests={request_id: Request(request_id) for request_id in ids},
    )


def make_outputs(ids: list[str]) -> dict[int, Any]:
    """What vLLM's update returns: each request got its tokens."""
    items = [Output(request_id, KEPT) for request_id in ids]
    return {0: SimpleNamespace(outputs=items, scheduler_stats=SimpleNamespace(asd=None))}


def make_regret(num_rows: int) -> torch.Tensor:
    """[R, K] float64: an exception in each tenth row."""
    regret = torch.full((num_rows, NUM_DRAFT), -1.0, dtype=torch.float64)
    regret[::10, EXCEPTION_AT] = 0.25
    return regret


def make_new(num_rows: int, level: str) -> Step:
    """This tree's step."""
    from vllm_asd import AsdConfig
    from vllm_asd.kernels.outcome import Column, Outcome
    from vllm_asd.telemetry.step_report import StepReport
    from vllm_asd.upstream import commit, way_back
    from vllm_asd.upstream.scheduler import Core

    ids, regret = make_ids(num_rows), make_regret(num_rows)
    outcome = Outcome.empty(
        num_rows, NUM_DRAFT, NUM_DETAILS if level == "detailed" else 0, torch.device("cpu")
    )
    outcome.table.zero_()
    outcome.exception_regret[:] = regret
    outcome.column(Column.NUM_DRAFT)[:] = NUM_DRAFT
    outcome.column(Column.ACCEPTED)[:] = ACCEPTED
    outcome.column(Column.EXCEPTIONS)[:] = (regret >= 0).sum(1)
    outcome.column(Column.THINKING)[:] = -1
    report = StepReport.start(ids, outcome)
    scheduler, outputs = make_scheduler(ids, level), make_outputs(ids)
    core = Core(scheduler, AsdConfig())
    add = core.wrap_add_request(lambda _: None)
    for request in scheduler.requests.values():
        add(request)
    update = core.wrap_update(lambda *_: outputs)
    schedule = SimpleNamespace(**{commit.ATTRIBUTE: commit.Notice(1, 0, {})})

    def run(received: Any) -> Any:
        output = SimpleNamespace(req_ids=ids, sampled_token_ids=[KEPT] * num_rows)
        setattr(output, way_back.ATTRIBUTE, received)
        return update(schedule, output)

    return Step(report.resolve, run)


def make_old(num_rows: int, level: str) -> Step:
    """The step of a tree before reports were columns."""
    from vllm_asd import AsdConfig
    from vllm_asd.kernels import Outcome
    from vllm_asd.telemetry.step_counters import StepCounters
    from vllm_asd.telemetry.step_report import StepReport
    from vllm_asd.upstream import scheduler as seam
    from vllm_asd.upstream import way_back

    ids, regret = make_ids(num_rows), make_regret(num_rows)
    counts = dict.fromkeys(("strict_accepted", "exceptions", "reused", "stop"), 0)
    counts |= {"num_draft": NUM_DRAFT, "accepted": ACCEPTED}
    make: Any = Outcome
    outcome = make(
        **{name: torch.full((num_rows,), value) for name, value in counts.items()},
        charged=torch.zeros(num_rows, dtype=torch.float64),
        exception_regret=regret,
        target_ids=torch.zeros(num_rows, NUM_DRAFT, dtype=torch.int64),
    )
    detail = torch.zeros(num_rows, 2 * NUM_DETAILS, dtype=torch.float64) if level == "detailed" else None
    spent = torch.zeros(num_rows, dtype=torch.float64)
    start: Any = StepReport.start
    report = start(ids, outcome, spent, torch.zeros(num_rows, dtype=torch.bool), detail)
    scheduler, outputs = make_scheduler(ids, level), make_outputs(ids)
    old: Any = seam
    add = old._wrap_add_request(scheduler, AsdConfig(), lambda _: None)
    for request in scheduler.requests.values():
        add(request)
    update = old._wrap_update(scheduler, StepCounters(), lambda *_: outputs)

    def run(received: Any) -> Any:
        return update(None, SimpleNamespace(**{way_back.ATTRIBUTE: received}))

    return Step(report.resolve, run)


if __name__ == "__main__":
    main()
