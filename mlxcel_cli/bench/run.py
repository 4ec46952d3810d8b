"""The main thread's side of `mlxcel bench`: options to plans, events to tables."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.errors import InvalidParams
from engine.models.progress import Progress
from engine.params import SpeculationParams
from mlxcel_cli.bench.charts import Chart, svg
from mlxcel_cli.bench.measure import (
    BenchEvent,
    LookupPlan,
    WidthsPlan,
    measured_lookup,
    measured_widths,
)
from mlxcel_cli.bench.report import (
    lookup_lines,
    run_object,
    setup_object,
    show_chart,
    summary_object,
    width_lines,
    width_object,
)
from mlxcel_cli.bench.results import Setup, VariantRun, WidthTable, lookup_chart, summarise
from mlxcel_cli.command_lines import LookupBenchCommand, WidthsCommand
from mlxcel_cli.config import load_settings
from mlxcel_cli.engine_requests import model_request
from mlxcel_cli.engine_thread import Emit, EngineThread
from mlxcel_cli.output import Output, standard_output
from mlxcel_cli.progress_text import progress_text

DEFAULT_REPEATS = 40
DEFAULT_REPETITIONS = 3
DEFAULT_DRAFT = SpeculationParams().max_draft


def bench_widths(command: WidthsCommand) -> None:
    """Measure and show verify widths.

    Raises:
        EngineError, OSError: for the program's entry point to report.
    """
    bench = _Bench(command)
    plan = WidthsPlan(
        bench.model,
        bench.max_draft,
        _positive("--repeats", command.measurement.repeats, DEFAULT_REPEATS),
    )
    for event in bench.events(lambda emit: measured_widths(plan, emit)):
        if isinstance(event, WidthTable):
            bench.show(width_object(event), width_lines(event), event.chart())


def bench_lookup(command: LookupBenchCommand) -> None:
    """Measure and show prompt lookup against plain decoding.

    Raises:
        EngineError, OSError: for the program's entry point to report.
    """
    bench = _Bench(command)
    repetitions = _positive("--repeats", command.measurement.repeats, DEFAULT_REPETITIONS)
    _positive("--max-tokens", command.max_tokens, 2, least=2)
    runs: list[VariantRun] = []
    plan = LookupPlan(bench.model, repetitions, command.max_tokens, bench.max_draft)
    for event in bench.events(lambda emit: measured_lookup(plan, emit)):
        if isinstance(event, VariantRun):
            runs.append(event)
            bench.note_run(event, repetitions)
    summaries = summarise(runs)
    bench.show(summary_object(summaries), lookup_lines(summaries), lookup_chart(summaries))


class _Bench:
    """What both benchmarks do before and after."""

    def __init__(self, command: WidthsCommand | LookupBenchCommand) -> None:
        self.output: Output = standard_output(os.environ)
        options = self._options = command.measurement
        settings = load_settings(os.environ, command="bench", config=options.config)
        for warning in settings.warnings:
            self.output.note(f"mlxcel: {warning}")
        self.model = model_request(command.model, settings, word=command.model_word)
        self.max_draft = DEFAULT_DRAFT if options.max_draft is None else options.max_draft
        try:
            SpeculationParams(max_draft=self.max_draft)
        except InvalidParams as error:
            raise InvalidParams("--max-draft", error.problem) from None
        if options.plot is not None:
            _check_plot(options.plot)

    def events(
        self, make: Callable[[Emit[BenchEvent]], Iterator[BenchEvent]]
    ) -> Iterator[BenchEvent]:
        """What the engine thread sends, but for what is shown here."""
        with EngineThread() as thread, thread.stream(make) as events:
            for event in events:
                if isinstance(event, Progress):
                    self.output.progress(progress_text(event))
                    continue
                self.output.clear_progress()
                if isinstance(event, Setup):
                    self._introduce(event)
                else:
                    yield event

    def note_run(self, run: VariantRun, repetitions: int) -> None:
        """One run, as it is done."""
        if self._options.json:
            self.output.json_line(run_object(run))
            return
        turn = f"{run.repetition + 1} of {repetitions}"
        self.output.progress(f"{turn}: {run.task}, {run.variant}: {run.per_second:.1f} tokens/s")

    def show(self, as_object: dict[str, object], lines: list[str], chart: Chart) -> None:
        """The result in the form that was asked for."""
        self.output.clear_progress()
        if self._options.json:
            self.output.json_line(as_object)
        else:
            for line in lines:
                self.output.line(line)
            show_chart(self.output, chart)
        if self._options.plot is not None:
            self._options.plot.write_text(svg(chart), encoding="utf-8")

    def _introduce(self, setup: Setup) -> None:
        for warning in setup.warnings:
            self.output.note(f"mlxcel: {warning}")
        if self._options.json:
            self.output.json_line(setup_object(setup))
        else:
            self.output.line(f"{setup.model} on {setup.device}; {'; '.join(setup.notes)}")


def _check_plot(plot: Path) -> None:
    if plot.suffix.lower() != ".svg":
        raise InvalidParams("--plot", f"writes SVG: name a file that ends in .svg, not {plot.name}")
    if not plot.absolute().parent.is_dir():
        raise InvalidParams("--plot", f"there is no folder {plot.parent}")


def _positive(option: str, value: int | None, default: int, *, least: int = 1) -> int:
    if value is None:
        return default
    if value < least:
        raise InvalidParams(option, f"must be {least} or more, got {value}")
    return value
