"""``mlxcel`` with a scripted backend instead of a model, run by tests as a program.

The script is JSON in FAKE_SCRIPT: lists of steps for ``load`` and ``answer``. A step is a name
and its values; sleeping steps stand for a forward or a load that cannot be interrupted.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine.errors import EvalFailed, ModelNotFound
from engine.events import PrefillProgress
from engine.lookup.stats import LookupStats
from engine.models.progress import Progress
from engine.outcome import Timings, Usage
from engine.text.answer_text import TextDelta
from mlxcel_cli import app, generation
from mlxcel_cli.answers import (
    AnswerDone,
    AnswerEvent,
    AnswerRequest,
    LookupRefused,
    ModelReport,
)

TIMINGS = Timings(prompt_n=4, prompt_s=0.5, predicted_n=3, predicted_s=0.25, ttft_s=0.5)


def sleep(seconds: float) -> Iterator[AnswerEvent]:
    time.sleep(seconds)
    yield from ()


def fail() -> Iterator[AnswerEvent]:
    raise EvalFailed("out of luck")


def crash() -> Iterator[AnswerEvent]:
    raise ZeroDivisionError("a bug")


def forever(text: str) -> Iterator[AnswerEvent]:
    while True:
        time.sleep(0.01)
        yield TextDelta(text)


STEPS = {
    "sleep": sleep,
    "fail": fail,
    "crash": crash,
    "forever": forever,
    "read": lambda *counts: iter((PrefillProgress("", *counts),)),
    "refuse": lambda reason: iter((LookupRefused(reason),)),
    "text": lambda text: iter((TextDelta(text),)),
    "think": lambda text: iter((TextDelta(text, is_reasoning=True),)),
}


class ScriptedBackend:
    def __init__(self) -> None:
        self.script = json.loads(os.environ.get("FAKE_SCRIPT", "{}"))

    def load(self, request, report) -> ModelReport:
        for name, *values in self.script.get("load", []):
            if name == "sleep":
                time.sleep(values[0])
            elif name == "progress":
                report(Progress(*values))
            elif name == "missing":
                raise ModelNotFound(request.name or "", "try mlxcel models list")
            elif name == "full disk":
                raise OSError(28, "No space left on device", "/somewhere/model.part")
        if "opens" in self.script:
            with Path(self.script["opens"]).open("w") as file:
                file.write(str(file.fileno()))
        has_template = not self.script.get("base", False)
        return ModelReport("fake", Path("fake"), 0.125, has_template, ("dense weights",))

    def answer(self, request: AnswerRequest) -> Iterator[AnswerEvent]:
        shown = []
        if "request" in self.script:
            Path(self.script["request"]).write_text(repr(request))
        for name, *values in self.script.get("answer", []):
            if name == "text":
                shown.append(values[0])
            yield from STEPS[name](*values)
        reasoned = any(step[0] == "think" for step in self.script.get("answer", []))
        timings = replace(TIMINGS, **self.script.get("timings", {}))
        lookup = LookupStats(**self.script["lookup"]) if "lookup" in self.script else None
        dropped = self.script.get("dropped")
        yield AnswerDone("".join(shown), "eos", 7, Usage(4, 3), timings, reasoned, lookup, dropped)

    def unload(self) -> None:
        pass


if __name__ == "__main__":
    generation.new_backend = ScriptedBackend
    sys.argv[0] = "mlxcel"
    # How long the first imports take, and how long an interrupted program waits at its end.
    if slow_start := os.environ.get("FAKE_SLOW_START"):
        app.run = lambda _: (os.write(1, b"importing\n"), time.sleep(float(slow_start)))
    app.LAST_WAIT_S = float(os.environ.get("FAKE_SLOW_END", app.LAST_WAIT_S))
    app.main()
