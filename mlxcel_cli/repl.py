"""Line mode of ``mlxcel chat``: streaming plain text, for screen readers, pipes and any terminal.

Ctrl-C drops the line that is typed, stops the answer that is written, and at its second press
during one answer ends the program at once.
"""

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TextIO

from engine.errors import EngineError
from engine.events import PrefillProgress
from engine.models.progress import Progress
from engine.text.answer_text import TextDelta, joined
from mlxcel_cli.answer_writers import TextWriter
from mlxcel_cli.answers import KEEPS_MODEL, AnswerDone, AnswerEvent, LookupRefused, ModelReport
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.slash import FollowUp, Reply, is_command, run_command
from mlxcel_cli.chat.start import ChatStart
from mlxcel_cli.chat.stats import NATURAL_ENDS, finish_note, speed_text
from mlxcel_cli.exit_codes import ExitCode, exit_code
from mlxcel_cli.failures import failure_text
from mlxcel_cli.line_input import InterruptHandler, Lines, MessageReader, PipedLines, TypedLines
from mlxcel_cli.output import Output
from mlxcel_cli.progress_text import prefill_text, progress_text

PROMPT = ">>> "
CONTINUATION = "... "
HISTORY_FILE = "history"
DUMB = ("dumb", "unknown")
"""Names of terminals that know no escape codes; prompt-toolkit's own list."""

TURN_ERRORS = (EngineError, OSError, MemoryError)
"""What ends a turn and not the chat."""


@dataclass(slots=True)
class LineChat:
    """One chat, line by line."""

    start: ChatStart
    answerer: Answerer
    output: Output
    lines: Lines
    status: int = ExitCode.OK
    """The last failed turn's exit status, for scripts."""
    _interrupt: InterruptHandler = field(init=False)

    def __post_init__(self) -> None:
        self._interrupt = InterruptHandler(self.lines.drop_line)

    def run(self) -> int:
        """Load the model, then answer until the lines end; the exit status.

        Raises:
            EngineError, OSError: the model cannot be loaded.
        """
        with self._interrupt if self.lines.takes_keys else nullcontext():
            self._load()
            self.output.note(self.lines.greeting)
            for message, is_quoted in self._messages():
                if not self._take(message, is_quoted=is_quoted):
                    break
        return self.status

    def _messages(self) -> Iterator[tuple[str, bool]]:
        """Messages, and whether each stood between quotes."""
        reader = MessageReader()
        draft = self.start.draft
        while True:
            try:
                line = self.lines.read(
                    CONTINUATION if reader.is_open else PROMPT, draft, self._interrupt
                )
            except KeyboardInterrupt:
                self._drop(reader)
                continue
            except EOFError:
                if (message := reader.flush()) is not None:
                    yield message, True
                return
            finally:
                draft = ""
            if (message := reader.push(line)) is not None:
                yield message, reader.was_quoted
                draft, self._restored = self._restored, ""
            elif self._interrupt.pressed:
                self._drop(reader)

    def _drop(self, reader: MessageReader) -> None:
        reader.discard()
        self.output.note("(dropped; /bye or Ctrl-D leaves)")

    _restored: str = ""

    def _take(self, message: str, *, is_quoted: bool) -> bool:
        """Do what one message asks; False ends the chat."""
        commands = is_command(message) and not is_quoted
        try:
            if commands:
                return self._obey(run_command(self.start.context, message))
            self.start.session.ask(message)
        except TURN_ERRORS as error:
            self._report(error)
            self._restored = "" if commands or "\n" in message else message
            return True
        self._answer()
        return True

    def _obey(self, reply: Reply) -> bool:
        match reply.follow_up:
            case FollowUp.QUIT:
                return False
            case FollowUp.ANSWER:
                self._answer()
            case FollowUp.CONTINUE:
                self._answer(continues=True)
            case FollowUp.EDIT:
                self._restored = reply.text
            case FollowUp.LOAD_MODEL:
                self.start = replace(self.start, model=replace(self.start.model, name=reply.text))
                self._load()
            case FollowUp.REDRAW | FollowUp.NOTHING:
                self.output.note(reply.text)
        return True

    def _load(self) -> None:
        before, self.start.session.model = self.start.session.model, None
        try:
            if not self.lines.takes_keys:
                self._watch_load()
                return
            with self._interrupt.stopping(self.answerer.stop):
                self._watch_load()
        except KEEPS_MODEL:
            self.start.session.model = before
            raise
        if self.start.session.model is None:
            self.output.clear_progress()
            self.output.note("mlxcel: loading is stopped; /model NAME loads a model")

    def _watch_load(self) -> None:
        for event in self.answerer.load(self.start.model):
            if isinstance(event, Progress):
                self.output.progress(progress_text(event))
                continue
            self.output.clear_progress()
            self._introduce(event)

    def _introduce(self, report: ModelReport) -> None:
        self.start.session.model = report
        device = f" on {report.device}" if report.device else ""
        took = f", ready in {report.load_s:.1f} s" if report.load_s else ""
        room = f"; {report.context_tokens} tokens of context" if report.context_tokens else ""
        self.output.note(f"mlxcel: {report.name}{device}{took}{room}")
        for warning in report.warnings:
            self.output.note(f"mlxcel: {warning}")
        if self.start.options.verbose:
            for note in report.notes:
                self.output.note(f"mlxcel: {note}")
        if not report.has_template:
            self.output.note(f"mlxcel: {report.name} looks like a base model: no chat template")

    def _answer(self, *, continues: bool = False) -> None:
        session = self.start.session
        if session.model is None:
            self._restored = session.fail()
            self.output.note("mlxcel: no model is loaded; /model NAME loads one")
            return
        writer = TextWriter(self.output, show_reasoning=bool(self.start.options.show_reasoning))
        try:
            stream = self.answerer.answer(session.request(continues=continues))
            with self._interrupt.stopping(self.answerer.stop):
                for burst in stream.bursts():
                    for event in joined(burst):
                        shown = self._show(event, writer, skips=continues)
                        continues = continues and not shown
        except TURN_ERRORS as error:
            self._restored = session.fail()
            writer.broke_off()
            self._report(error)
            return
        if self._interrupt.pressed:
            session.stop()
            writer.broke_off()
        self._close_turn()

    def _show(self, event: AnswerEvent, writer: TextWriter, *, skips: bool) -> bool:
        """Write one event; whether it was text. ``skips``: the text is on the screen."""
        self.start.session.take(event)
        match event:
            case TextDelta():
                if not skips:
                    writer.write(event)
                return True
            case PrefillProgress():
                self.output.progress(prefill_text(event))
            case LookupRefused():
                self.output.note(f"mlxcel: prompt lookup {event.reason}")
            case AnswerDone():
                self.output.clear_progress()
                if self.start.session.model is not None:
                    writer.done(event, self.start.session.model)
        return False

    def _close_turn(self) -> None:
        session = self.start.session
        answer = session.chat.last_answer
        if answer is None:
            self.output.note("[stopped before the first token]")
            return
        if answer.finish in NATURAL_ENDS and not (answer.text.strip() or answer.reasoning):
            self.output.note("[the model wrote nothing]")
        hint = "" if self.start.context.is_remote else "/continue to continue"
        if note := finish_note(answer, hint):
            self.output.note(f"[{note}]")
        if session.unsaved is not None and not session.save_again():
            self._report_unsaved(session.unsaved)
        if self.start.options.stats:
            self.output.note(f"[{speed_text(answer)} · seed {answer.numbers.seed}]")

    def _report_unsaved(self, error: OSError) -> None:
        if self.start.session.waits_for_file:
            # Leaving saves it, or reports that it could not.
            self.output.note(f"mlxcel: {failure_text(error)}; the chat is saved later")
        else:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        self.output.clear_progress()
        self.output.note(f"mlxcel: {failure_text(error)}")
        self.status = exit_code(error)


def chat_lines(
    start: ChatStart,
    answerer: Answerer,
    output: Output,
    environ: MutableMapping[str, str],
) -> int:
    """Run line mode on the process's own streams; the exit status.

    Args:
        start: what the command line settled.
        answerer: loads and answers.
        output: the terminal.
        environ: the process's own; prompt-toolkit asks it what the terminal is.
    """
    stdin: TextIO | None = sys.stdin
    is_interactive = stdin is not None and stdin.isatty() and sys.stdout.isatty()
    lines: Lines
    if is_interactive:
        # A terminal without a name may know nothing.
        environ["TERM"] = environ.get("TERM") or "dumb"
        is_dumb = environ["TERM"] in DUMB
        history = None if start.store is None else start.settings.data_home / HISTORY_FILE
        lines = TypedLines(history, is_dumb=is_dumb)
    else:
        lines = PipedLines(open(os.devnull) if stdin is None else stdin)  # noqa: PTH123, SIM115
    return LineChat(start, answerer, output, lines).run()
