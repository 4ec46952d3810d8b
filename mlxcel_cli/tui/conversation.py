"""The conversation on the screen: its turns, the answer being written, and the model behind it.

Only handlers on the event loop change widgets; the thread that waits for the engine posts messages.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer

from engine.errors import EngineError
from engine.events import PrefillProgress
from engine.models.progress import Progress
from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import KEEPS_MODEL, AnswerDone, ModelReport, ModelRequest
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.failures import failure_text
from mlxcel_cli.progress_text import progress_text
from mlxcel_cli.tui.jobs import AnswerEvents, JobFailed, Jobs, LoadEvents
from mlxcel_cli.tui.status import notice
from mlxcel_cli.tui.streaming import TypingWatch
from mlxcel_cli.tui.transcript import AnswerTurn, Hints, Transcript, UserTurn

SAVE_AGAIN_S = 0.25
QUIET_TRIES = 4
"""A second: two windows that write at the same time need not be reported."""


class Conversation(Vertical):
    """The transcript, and everything that happens to a turn: sent, answered, stopped, failed.

    Args:
        session: the chat; what is asked, answered and saved.
        model: the model to load first.
        hints: what to press.
        typing: knows when keys came.
    """

    @dataclass
    class TakenBack(Message):
        """A message was not answered and is no longer part of the chat."""

        text: str

    class Changed(Message):
        """The model, the answer or its numbers have changed."""

    def __init__(
        self, session: ChatSession, model: ModelRequest, hints: Hints, typing: TypingWatch
    ) -> None:
        super().__init__()
        self.transcript = Transcript(hints)
        # The first load begins behind the first screen, where a quick typist may be faster.
        self.load_progress = "loading"
        """How far a load is, while one runs."""
        self.is_waiting = False
        """Whether a message waits for the model."""
        self._session = session
        self._model = model
        self._hints = hints
        self._typing = typing
        self._jobs: Jobs | None = None
        self._turn: AnswerTurn | None = None
        """The answer being written."""
        self._replaced: ModelReport | None = None
        """The model that the one being loaded replaces."""
        self._continues = False
        """Whether what waits is the rest of an answer."""
        self._saving: Timer | None = None
        """Runs while something waits for the file of chats."""
        self._tries = 0

    def compose(self) -> ComposeResult:
        """The turns."""
        yield self.transcript

    def begin(self, new_answerer: Callable[[], Answerer]) -> None:
        """Start the engine's thread and load the first model."""
        self._jobs = Jobs(new_answerer(), self)
        self.load(self._model.name)

    def end(self) -> None:
        """Keep what is written, and let the engine's thread end."""
        if self._session.is_generating:
            self._session.stop()
        if self._jobs is not None:
            self._jobs.close()
            self._jobs = None

    @property
    def is_generating(self) -> bool:
        """Whether an answer is being written or waited for."""
        return self.is_waiting or self._session.is_generating

    @property
    def can_stop(self) -> bool:
        """Whether anything runs."""
        return self.is_generating or bool(self.load_progress)

    async def show(self) -> None:
        """Show the chat as it now is."""
        self._turn = None
        await self.transcript.show(self._session.chat.messages)
        self.post_message(self.Changed())

    # -- turns

    async def ask(self, text: str) -> bool:
        """Add what the user typed and answer it; False where it cannot be asked, with a notice."""
        try:
            self._session.ask(text)
        except (EngineError, OSError) as error:
            notice(self, failure_text(error), "error")
            return False
        self.watch_saving()
        await self.transcript.add(UserTurn(text, self._hints.unfold))
        await self.answer()
        return True

    async def answer(self, *, continues: bool = False) -> None:
        """Answer the chat as it stands, in place of the answer that is there."""
        if self._session.model is None and not self.load_progress:
            notice(self, "No model is loaded; /model NAME loads one.", "error")
            await self._take_back()
            return
        last = self.transcript.last_answer
        if self._session.chat.last_answer is not None and last is not None:
            await last.remove()
        self._turn = AnswerTurn(None, self._hints.continue_answer, self._typing)
        await self.transcript.add(self._turn)
        self.transcript.follow()
        if self._session.model is None:
            self.is_waiting, self._continues = True, continues
            self._turn.say("waiting for the model")
            return
        assert self._jobs is not None
        try:
            self._jobs.answer(self._session.request(continues=continues))
        except EngineError as error:
            notice(self, failure_text(error), "error")
            await self.show()

    async def stop(self) -> None:
        """Stop what runs: the answer, the wait for the model, the load."""
        if self.is_waiting:
            self.is_waiting = False
            await self._take_back()
            return
        if self._jobs is None or not self.can_stop:
            notice(self, "Nothing is being written.")
            return
        self._jobs.stop()
        if self._session.is_generating:
            self._session.stop()
            turn, self._turn = self._turn, None
            answer = self._session.chat.last_answer
            if turn is not None and answer is not None:
                await turn.end(answer)
            elif turn is not None:
                turn.say("stopped before the first token")
            self._report_unsaved()
            self.watch_saving()
        else:
            self.load_progress = ""
            notice(self, "Loading is stopped; /model NAME loads a model.")
        self.post_message(self.Changed())

    async def _take_back(self) -> None:
        """Take the last message out of the chat, where it has no answer."""
        if self._session.chat.last_answer is None and self._session.chat.messages:
            self.post_message(self.TakenBack(self._session.take_back()))
        await self.show()

    # -- the model

    def load(self, name: str | None) -> None:
        """Load a model in place of the one that is there."""
        assert self._jobs is not None
        self._replaced, self._session.model = self._session.model, None
        self.load_progress = "loading"
        self._model = replace(self._model, name=name)
        self._jobs.load(self._model)
        self.post_message(self.Changed())

    async def on_load_events(self, message: LoadEvents) -> None:
        """Show how far a load is; begin with the message that waits for it."""
        if not self._is_current(message.job):
            return
        for event in message.events:
            if isinstance(event, Progress):
                self.load_progress = progress_text(event)
            else:
                await self._show_loaded(event)
        self.post_message(self.Changed())

    async def _show_loaded(self, report: ModelReport) -> None:
        self.load_progress = ""
        self._session.model = report
        for warning in report.warnings:
            notice(self, warning, "warning")
        if not report.has_template:
            notice(self, f"{report.name} looks like a base model: it has no chat template.")
        if self.is_waiting:
            self.is_waiting = False
            if self._turn is not None:
                await self._turn.remove()
            await self.answer(continues=self._continues)

    # -- what comes of an answer

    async def on_answer_events(self, message: AnswerEvents) -> None:
        """Show what came of the answer."""
        if not self._is_current(message.job) or self._turn is None:
            return
        written = ""
        for event in message.events:
            self._session.take(event)
            if isinstance(event, PrefillProgress):
                self._turn.say(f"reading {event.done_tokens} of {event.prompt_tokens} tokens")
            elif isinstance(event, TextDelta):
                self._turn.say("")
                written += "" if event.is_reasoning else event.text
        self._turn.write(written)
        answer = self._session.answer
        if any(isinstance(event, TextDelta) and event.is_reasoning for event in message.events):
            self._turn.think(answer.reasoning, answer.numbers.reasoning_tokens)
        if isinstance(message.events[-1], AnswerDone):
            turn, self._turn = self._turn, None
            await turn.end(answer)
            self._report_unsaved()
        self.watch_saving()
        self.post_message(self.Changed())

    async def on_job_failed(self, message: JobFailed) -> None:
        """Report an error; what was typed is taken back where nothing was answered."""
        if not self._is_current(message.job):
            return
        notice(self, failure_text(message.error), "error")
        if (
            self.load_progress
            and self._replaced is not None
            and isinstance(message.error, KEEPS_MODEL)
        ):
            self._session.model = self._replaced
            notice(self, f"The chat continues with {self._replaced.name}.")
        self.load_progress, self.is_waiting = "", False
        if self._session.is_generating:
            self.post_message(self.TakenBack(self._session.fail()))
            await self.show()
        else:
            await self._take_back()
        self.watch_saving()

    def _is_current(self, job: int) -> bool:
        return self._jobs is not None and job == self._jobs.current

    # -- saving

    def _report_unsaved(self) -> None:
        if self._session.unsaved is not None and not self._session.waits_for_file:
            notice(self, failure_text(self._session.unsaved), "error")

    def watch_saving(self) -> None:
        """Save what waits for the file of chats as soon as it can be; report a long wait."""
        if self._session.waits_for_file and self._saving is None:
            self._saving = self.set_interval(SAVE_AGAIN_S, self._save_again)
            self._tries = 0

    def _save_again(self) -> None:
        is_saved = self._session.save_again()
        self._tries += 1
        if is_saved and self._saving is not None:
            self._saving.stop()
            self._saving = None
        if is_saved and self._tries > QUIET_TRIES:
            notice(self, "The chat is saved now.")
        if not is_saved and self._tries == QUIET_TRIES and self._session.unsaved is not None:
            problem = failure_text(self._session.unsaved)
            notice(self, f"{problem}; what is said here is saved once it can be.", "error")
