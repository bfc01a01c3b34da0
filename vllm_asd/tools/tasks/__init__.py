"""lm-eval tasks that read their documents from a folder: prompts, extraction and scores.

A YAML names the prompt and the functions of this package; `documents` reads `<folder>/<source>/audit.jsonl`.
"""

from pathlib import Path

TASK_FOLDER = Path(__file__).parent
BUILTIN_DATA = TASK_FOLDER / "data"
