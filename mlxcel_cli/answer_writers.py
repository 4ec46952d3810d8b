"""Show one answer: as text for people and pipes, or as JSON lines for programs."""

from collections.abc import Mapping
from typing import Protocol

from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import AnswerDone, ModelReport
from mlxcel_cli.failures import error_object
from mlxcel_cli.output import Output
from mlxcel_cli.signals import ReaderGone
from mlxcel_cli.timings_json import milliseconds, timings_json

_OF_SERVERS = ("cache_n", "prompt_per_token_ms", "predicted_per_token_ms")
"""Timings that one answer of a fresh process leaves out."""


class AnswerWriter(Protocol):
    """Writes the text of one answer and its end."""

    def write(self, delta: TextDelta) -> None:
        """Write text as it comes."""

    def done(self, done: AnswerDone, report: ModelReport) -> None:
        """Write how the answer ended."""

    def broke_off(self) -> None:
        """The answer ends here, unfinished; what was written stays."""

    def failed(self, error: Exception) -> bool:
        """Write an error in the answer's own form; False leaves it to the program's entry point."""


class TextWriter:
    """The answer and nothing else on stdout, one newline at its end."""

    def __init__(self, output: Output, *, show_reasoning: bool) -> None:
        self._output = output
        self._show_reasoning = show_reasoning
        self._last_was_reasoning = False

    def write(self, delta: TextDelta) -> None:
        """Write text at once; reasoning dimmed, if it is shown at all."""
        if delta.is_reasoning and not self._show_reasoning:
            return
        if self._last_was_reasoning and not delta.is_reasoning:
            self._output.end_line()
        self._last_was_reasoning = delta.is_reasoning
        self._output.write(delta.text, dim=delta.is_reasoning)

    def done(self, done: AnswerDone, report: ModelReport) -> None:
        """End the line, and say so if there was nothing to show."""
        del report
        self._output.end_line()
        if done.reasoned and not done.text.strip():
            self._output.note(
                "mlxcel: the model only reasoned and wrote no answer; --show-reasoning shows "
                "it, a larger --max-tokens may let it finish"
            )

    def broke_off(self) -> None:
        """End the line, so that what follows starts on its own."""
        self._output.end_line()

    def failed(self, error: Exception) -> bool:
        """End the line; the program's entry point reports the error."""
        del error
        self.broke_off()
        return False


class JsonWriter:
    """One JSON object a line on stdout."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, delta: TextDelta) -> None:
        """Write a ``delta``, or ``reasoning``."""
        if delta.text:
            kind = "reasoning" if delta.is_reasoning else "delta"
            self._output.json_line({"type": kind, "text": delta.text})

    def done(self, done: AnswerDone, report: ModelReport) -> None:
        """Write the ``done`` object."""
        self._output.json_line(done_object(done, report))

    def broke_off(self) -> None:
        """Write nothing: a stream without ``done`` or ``error`` was cut off."""

    def failed(self, error: Exception) -> bool:
        """Write the ``error`` object."""
        if isinstance(error, ReaderGone):
            return False
        self._output.json_line(error_object(error))
        return True


def done_object(done: AnswerDone, report: ModelReport) -> Mapping[str, object]:
    """The ``done`` object of ``--json``; rates are computed as llama.cpp's are."""
    timings = {"load_ms": milliseconds(report.load_s), "ttft_ms": milliseconds(done.timings.ttft_s)}
    for name, value in timings_json(done.timings).items():
        if name not in _OF_SERVERS:
            timings[name] = value
    return {
        "type": "done",
        "text": done.text,
        "finish": done.finish,
        "seed": done.seed,
        "model": report.name,
        "usage": {
            "prompt_tokens": done.usage.prompt_tokens,
            "completion_tokens": done.usage.completion_tokens,
        },
        "timings": timings,
    }


def lookup_line(done: AnswerDone) -> str | None:
    """What prompt lookup did, as key=value pairs; None when it was off."""
    if done.lookup is None:
        return None
    return done.lookup.line(done.usage.completion_tokens)


def stats_line(done: AnswerDone, report: ModelReport) -> str:
    """Counts, seconds and rates of one answer, for people."""
    timings = done.timings
    return (
        f"{report.name}: loaded in {report.load_s:.2f} s; "
        f"prompt {timings.prompt_n} tokens in {timings.prompt_s:.2f} s "
        f"({timings.prompt_per_second:.1f}/s); first token after {timings.ttft_s:.2f} s; "
        f"answer {timings.predicted_n} tokens in {timings.predicted_s:.2f} s "
        f"({timings.predicted_per_second:.1f}/s); finish {done.finish or '-'}; seed {done.seed}"
    )
