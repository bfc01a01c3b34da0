"""`python -m vllm_asd.tools.bench.client_process`: runs `vllm bench serve` again and again in one process.

Its imports take longer than a small measurement, so they are paid once. A line of standard input is a JSON
list of arguments for `vllm bench serve`; a line of standard output is the JSON reply, `{}` or
`{"error": ...}`. What vLLM prints goes to standard error.
"""

import json
import os
import sys
from typing import TextIO


def main() -> None:
    """Serve until standard input ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as bench_serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    _reply(replies, {})
    for line in sys.stdin:
        reply: dict[str, str] = {}
        try:
            bench_serve(parser.parse_args(json.loads(line)))
        except SystemExit:
            reply["error"] = "`vllm bench serve` refused its arguments"
        except Exception as error:  # noqa: BLE001 (whatever it is, the parent reports it)
            reply["error"] = f"{type(error).__name__}: {error}"
        sys.stdout.flush()
        _reply(replies, reply)


def _reply(replies: TextIO, reply: dict[str, str]) -> None:
    print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
