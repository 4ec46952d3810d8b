"""``mlxcel`` with a scripted backend for its chat, run by tests in a pseudo-terminal.

FAKE_ANSWER is the text of every answer, written word by word; FAKE_PAUSE the seconds between two
words, FAKE_LOAD the seconds of a load. A question that holds "crash" meets a bug.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from engine.errors import EvalFailed
from engine.models.progress import Progress
from engine.outcome import Timings, Usage
from engine.text.answer_text import TextDelta
from mlxcel_cli import app, chat_front
from mlxcel_cli.answers import AnswerDone, AnswerEvent, ModelReport


class WordBackend:
    def load(self, request, report) -> ModelReport:
        report(Progress("loading", 1, 2))
        time.sleep(float(os.environ.get("FAKE_LOAD", "0")))
        return ModelReport(request.name or "fake", Path("fake"), 0.1, has_template=True)

    def answer(self, request) -> Iterator[AnswerEvent]:
        asked = str(request.prompt.messages[-1]["content"])
        if "crash" in asked:
            raise ZeroDivisionError("a bug")
        if "fail" in asked:
            raise EvalFailed("out of luck")
        text = os.environ.get("FAKE_ANSWER") or f"You said: {asked[:200]} ({len(asked)} characters)"
        for tokens, word in enumerate(text.split(" "), start=1):
            yield TextDelta(word + " ", tokens=tokens)
            time.sleep(float(os.environ.get("FAKE_PAUSE", "0")))
        timings = Timings(4, 0.1, tokens, 0.1, 0.1)
        yield AnswerDone(text + " ", "eos", 7, Usage(4, tokens), timings)

    def unload(self) -> None:
        pass


if __name__ == "__main__":
    chat_front.new_backend = WordBackend
    sys.argv[0] = "mlxcel"
    app.main()
