"""How well does shadow mode foresee an enforced run? Each prompt in both modes, in one engine.

    python -m eval.shadow --data gsm8k=PROMPTS.jsonl --drafter DRAFTER --output FOLDER

Up to the first exception both runs have written the same text and got the same drafts, so the block in which
they part must be decided alike. Behind it the texts differ, and the shadow run's gain is a forecast.
"""
