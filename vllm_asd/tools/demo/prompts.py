"""What the demo asks: short tasks, most of which repeat themselves or their prompt, as n-gram drafts need."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Prompt:
    """One request.

    Attributes:
        title: What the output calls it.
        route: Which of the two OpenAI routes it takes.
        text: The user's message, or the text to go on with.
        max_tokens: Where the answer is cut at the latest.
    """

    title: str
    route: Literal["chat", "completion"]
    text: str
    max_tokens: int = 96


PROMPTS = (
    Prompt(
        "rewrite",
        "chat",
        "Rewrite in the past tense: The server starts at nine. The server loads the model. The server "
        "answers the first request. The server writes a line to the log. The server stops at ten.",
    ),
    Prompt(
        "summary",
        "chat",
        "Summarize: The Amazon rainforest covers most of the Amazon basin of South America. The Amazon basin "
        "covers seven million square kilometers. The rainforest covers five and a half million square "
        "kilometers. The region includes territory of nine nations. Most of the rainforest is in Brazil.",
    ),
    Prompt("poem", "chat", "Write a poem about the sea in which every line begins with 'The sea'."),
    Prompt(
        "story",
        "completion",
        "Once upon a time, in a small village by the sea, there lived a fisherman who",
    ),
    Prompt(
        "questions",
        "completion",
        "Q: What is the capital of France?\nA: The capital of France is Paris.\n"
        "Q: What is the capital of Italy?\nA: The capital of Italy is Rome.\nQ:",
    ),
    Prompt(
        "sql",
        "completion",
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, email TEXT);\n"
        "CREATE TABLE orders (id INTEGER PRIMARY KEY,",
    ),
)
