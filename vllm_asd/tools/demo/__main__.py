"""`make demo`: start vLLM twice (n-gram drafts, then a draft model) and compare the two rules."""

import argparse
import json
import logging
import sys
from typing import Any

import openai
from rich.console import Console

from vllm_asd import AsdConfig
from vllm_asd.tools.demo.client import DemoClient, TokenText
from vllm_asd.tools.demo.prompts import PROMPTS
from vllm_asd.tools.demo.render import Pair, Series, make_console, show_pair, show_summary
from vllm_asd.tools.models import default_cache_dir, prepare_low_precision_copy, prepare_smollm2
from vllm_asd.tools.server import VllmServer
from vllm_asd.tools.server.environment import dtype_args

_MODEL = "smollm2"
_ASD = {"rejection_sample_method": "asd"}
# Prefix caching off: the second of two equal requests would run on other batch shapes than the first.
_SERVER_ARGS = (
    "--enforce-eager",
    "--no-enable-prefix-caching",
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "4",
    "--served-model-name",
    _MODEL,
    "--per-request-spec-decode-metrics",
    "detailed",
)

_INTRODUCTION = """\
The same requests, twice each, at temperature 0, to the same server:
  strict  with "vllm_xargs": {{"asd_budget": 0}}, which is vLLM's own greedy verification
  asd     with the server's limits, the defaults: at most {budget:g} nats of regret per request,
          {gate:g} per token at stake, {cap} exceptions per block
A round is one pass of the target model. In the texts, \u00abkept|target\u00bb marks an exception: the draft's
token that was kept, and what the target itself would have said."""

_CAVEAT = """\
This is no speed-up, and no time is shown. The draft model is a copy of the target at lower precision
and costs as much as the target itself; n-gram drafts cost next to nothing, but nobody serves a 135M
model on a CPU. What carries over to a real drafter is the rounds, not the seconds. Nor do rounds say
anything about quality: a model this small errs and repeats itself under either rule.
Tokens per round leave out an answer's first token, which the prompt's own pass gives. The strict texts
of the two drafters may differ: sums round differently where a batch has another shape."""


def main() -> int:
    """Run the demo; every failure is one message and a status, and the server is gone in each case."""
    argparse.ArgumentParser(prog="python -m vllm_asd.tools.demo", description=__doc__).parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("eval").setLevel(logging.INFO)
    console = make_console()
    try:
        run(console)
    except KeyboardInterrupt:
        console.print("interrupted; the server is stopped")
        return 130
    except (RuntimeError, openai.OpenAIError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def run(console: Console) -> None:
    """Prepare the models, ask both servers, print."""
    target = prepare_smollm2(default_cache_dir())
    copy = prepare_low_precision_copy(target, default_cache_dir())
    drafters: dict[str, dict[str, Any]] = {
        "n-gram": {
            "method": "ngram",
            "num_speculative_tokens": 5,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        },
        "5-bit copy": {"method": "draft_model", "model": str(copy), "num_speculative_tokens": 5},
    }
    limits = AsdConfig()
    introduction = _INTRODUCTION.format(
        budget=limits.asd_budget, gate=limits.asd_gate, cap=limits.asd_block_cap
    )
    console.print(introduction, markup=False, soft_wrap=True)
    text = TokenText(target)
    all_series = []
    for name, drafter in drafters.items():
        console.print(f"\n[bold]== Drafter: {name} ==[/bold]")
        speculation = ["--speculative-config", json.dumps(drafter | _ASD)]
        server = VllmServer(target, [*_SERVER_ARGS, *dtype_args(), *speculation])
        all_series.append(Series(name, _ask_all(console, server, text)))
    show_summary(console, all_series)
    console.print()
    console.print(_CAVEAT, markup=False, soft_wrap=True)


def _ask_all(console: Console, server: VllmServer, text: TokenText) -> list[Pair]:
    pairs = []
    with server:
        console.print(f"ready after {server.start_s:.0f} s (log: {server.log_path})", soft_wrap=True)
        client = DemoClient(server.base_url, _MODEL)
        for prompt in PROMPTS:
            pair = Pair(prompt, client.ask(prompt, strict=True), client.ask(prompt, strict=False))
            show_pair(console, pair, text)
            pairs.append(pair)
    return pairs


if __name__ == "__main__":
    sys.exit(main())
