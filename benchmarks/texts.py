"""Prompts of exact lengths that no cache knows, and those that are copied from."""

import random
import re
from pathlib import Path

from engine.text.tokenizer import Tokenizer
from mlxcel_cli.bench.tasks import TASKS

_WORD = re.compile(r" [a-z]{4,9}")


class Texts:
    """Makes prompts from words that are one token each.

    Args:
        folder: of the model.
        seed: the same seed makes the same prompts.
    """

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self._tokenizer = Tokenizer.from_folder(folder)
        self._chance = random.Random(seed)
        texts = (self._tokenizer.decode([i]) for i in range(500, 20_000))
        self._words = [text for text in texts if _WORD.fullmatch(text)]

    def of(self, tokens: int) -> str:
        """A text of that many tokens whose first words are nobody else's."""
        text = "".join(self._chance.choice(self._words) for _ in range(tokens))
        assert len(self._tokenizer.encode(text)) == tokens, "every word must be one token"
        return text

    def between(self, least: int, most: int) -> str:
        """The same of a random length."""
        return self.of(self._chance.randint(least, most))

    def ids(self, text: str) -> list[int]:
        """Its tokens."""
        return list(self._tokenizer.encode(text))

    def conversation(self, tokens: int) -> list[dict[str, str]]:
        """A first turn of about that many tokens, unlike any other from its first word on."""
        return [
            {"role": "system", "content": f"Notes{self.of(6)}."},
            {"role": "user", "content": f"Read this:{self.of(tokens - 30)}. Continue."},
        ]


def style_prompts(style: str, count: int) -> list[str]:
    """Prompts of `mlxcel bench lookup`: ``copy`` ones ask for what they hold, ``plain`` do not.

    Each begins with a number, so that no two share a beginning in the prompt cache.
    """
    tasks = [task for task in TASKS if task.copies == (style == "copy")]
    return [f"{i + 1}.\n\n{tasks[i % len(tasks)].prompt}" for i in range(count)]
