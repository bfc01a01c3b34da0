"""The beginning of both processes: limits first, then the role.

`python -c "<put the folder of this package on sys.path, call main>" FOLDER ROLE [filter]`
"""

import json
import os
import sys

from . import audit_hook, candidate, judge, limits, syscalls


def main() -> None:
    """Become the candidate or the judge; status 0 says that the tests passed, from the judge alone."""
    folder, role, *options = sys.argv[1:]
    sys.path.remove(folder)
    sys.argv[1:] = []
    limits.limit()
    # The judge reads its job there and has the channel as its output; the candidate's channel is its input.
    channel = os.dup(1 if role == "judge" else 0)
    job = json.load(sys.stdin) if role == "judge" else {}
    _close_standard_files()
    if "filter" in options:
        syscalls.forbid()
    audit_hook.install(os.getcwd(), sys.path)
    try:
        if role == "judge":
            judge.judge(channel, job)
        else:
            candidate.serve(channel)
    except BaseException:  # noqa: BLE001 - SystemExit of a test's is a failure, too
        os._exit(1)
    os._exit(0 if role == "judge" else 1)


def _close_standard_files() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
