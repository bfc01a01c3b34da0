"""What does a nat of regret buy, under this rule and under others?

    python -m eval.frontier run --data gsm8k=PROMPTS.jsonl --drafter DRAFTER --output FOLDER

All rules verify side by side in one engine: each request has its own, chosen at the very place where the
plugin decides, so that drafting, kernels, ledger and reports are the same for all, and so is the load. The
rivals live here and not in the plugin.
"""
