"""Runs ``mlxcel generate``: reads the prompt while the engine thread loads, then streams.

The main thread only waits on a queue, reads files and writes, so that a signal is noticed at
once, whatever the engine thread is doing.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from engine.errors import InvalidParams
from engine.events import PrefillProgress
from engine.models.progress import Progress
from engine.params import SamplingParams
from engine.text.answer_text import TextDelta, joined
from mlxcel_cli.answer_writers import (
    AnswerWriter,
    JsonWriter,
    TextWriter,
    lookup_line,
    stats_line,
)
from mlxcel_cli.answers import (
    AnswerDone,
    AnswerRequest,
    Backend,
    LookupRefused,
    ModelReport,
)
from mlxcel_cli.command_lines import GenerateCommand
from mlxcel_cli.config import Settings, debug_asked, load_settings
from mlxcel_cli.engine_requests import answer_request, model_request
from mlxcel_cli.engine_thread import EngineThread, Stream
from mlxcel_cli.exit_codes import ExitCode, exit_code
from mlxcel_cli.failures import traceback_text
from mlxcel_cli.lookup_options import check_dependent_options, read_lookup_files
from mlxcel_cli.options import OutputOptions
from mlxcel_cli.output import Output, standard_output
from mlxcel_cli.progress_text import prefill_text, progress_text
from mlxcel_cli.prompt_input import plan_prompt, process_stdin, read_prompt
from mlxcel_cli.signals import Interrupted, ReaderGone

GREEDY = SamplingParams()
"""What generate samples with when nothing says otherwise: the same prompt, the same answer."""


def generate_once(command: GenerateCommand) -> int:
    """Answer one prompt; the exit status.

    Raises:
        EngineError, OSError: for the program's entry point to report, unless ``--json`` does.
        Interrupted: after ending stdout's line.
    """
    output = standard_output(os.environ)
    writer = _writer(command.output, output)
    try:
        settings = load_settings(os.environ, command="generate", config=command.output.config)
        options = settings.fill(command)
        check_dependent_options(command.lookup, options.lookup)
        writer = _writer(options.output, output)
        for warning in settings.warnings:
            output.note(f"mlxcel: {warning}")
        _Generation(options, settings, output, writer).run(new_backend())
    except Interrupted:
        output.clear_progress()
        # A terminal that was closed, a full disk: the signal is what ended the program.
        with suppress(OSError, ReaderGone):
            writer.broke_off()
        raise
    except Exception as error:
        output.clear_progress()
        if not writer.failed(error):
            raise
        if debug_asked(os.environ):
            output.note(traceback_text(error))
        return exit_code(error)
    return ExitCode.OK


def new_backend() -> Backend:
    """The real engine behind ``generate``; a test puts its own here."""
    from mlxcel_cli.engine_backend import EngineBackend

    return EngineBackend()


class _Generation:
    def __init__(
        self, options: GenerateCommand, settings: Settings, output: Output, writer: AnswerWriter
    ) -> None:
        self._options = options
        self._settings = settings
        self._output = output
        self._writer = writer

    def run(self, backend: Backend) -> None:
        options = self._options
        stdin = process_stdin()
        plan = plan_prompt(options.words or (), options.prompt, stdin)
        # Whatever can be refused is refused before a model is loaded.
        request = replace(
            answer_request(
                options.sampling,
                options.length,
                options.lookup,
                defaults=GREEDY,
                context_tokens=options.model.ctx_size,
            ),
            lookup_texts=read_lookup_files(options.lookup.lookup_file),
        )
        model = model_request(options.model, self._settings)
        with EngineThread() as thread:
            loading: Stream[Progress | ModelReport] = thread.stream(
                lambda emit: iter((backend.load(model, emit),))
            )
            with loading:
                prompt = read_prompt(plan, stdin)
                report = self._watch(loading)
            self._introduce(report)
            done = self._show(thread, backend, replace(request, prompt=prompt), report)
            thread.call(backend.unload)
        if options.output.stats:
            for line in (stats_line(done, report), lookup_line(done)):
                if line is not None:
                    self._output.note(line)

    def _watch(self, loading: Iterable[Progress | ModelReport]) -> ModelReport:
        for event in loading:
            if isinstance(event, ModelReport):
                self._output.clear_progress()
                return event
            self._output.progress(progress_text(event))
        raise AssertionError("load ended without a report")

    def _introduce(self, report: ModelReport) -> None:
        for warning in report.warnings:
            self._output.note(f"mlxcel: {warning}")
        if self._options.output.verbose:
            for note in (f"{report.name} ({report.path})", *report.notes):
                self._output.note(f"mlxcel: {note}")
        if not report.has_template and not self._options.prompt.raw:
            self._output.note(
                f"mlxcel: {report.name} has no chat template and looks like a base model; the "
                "prompt is framed as a plain dialogue (--raw gives it as it is)"
            )

    def _show(
        self,
        thread: EngineThread,
        backend: Backend,
        request: AnswerRequest,
        report: ModelReport,
    ) -> AnswerDone:
        with thread.stream(lambda _: backend.answer(request)) as events:
            for burst in events.bursts():
                for event in joined(burst):
                    if isinstance(event, TextDelta):
                        self._writer.write(event)
                    elif isinstance(event, PrefillProgress):
                        self._output.progress(prefill_text(event))
                    elif isinstance(event, LookupRefused):
                        raise InvalidParams("--prompt-lookup", event.reason)
                    else:
                        self._output.clear_progress()
                        self._writer.done(event, report)
                        if event.lookup_dropped:
                            why = event.lookup_dropped
                            self._output.note(f"mlxcel: prompt lookup ended early: {why}")
                        return event
        raise AssertionError("answer ended without AnswerDone")


def _writer(options: OutputOptions, output: Output) -> AnswerWriter:
    if options.json:
        return JsonWriter(output)
    return TextWriter(output, show_reasoning=bool(options.show_reasoning))
