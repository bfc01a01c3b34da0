"""Does ASD save verification rounds? Each prompt once strict and once relaxed, on the same server.

    python -m eval.rounds --data gsm8k=PROMPTS.jsonl --drafter DRAFTER --output FOLDER

Rounds, not seconds: they do not depend on what else the machine is doing. The control is budget 0 in the same
server, and a second control shows what changes from run to run by itself.
"""
