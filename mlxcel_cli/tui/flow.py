"""How a turn goes on the screen: asked, waited for, written, stopped, failed; and how models load.

Only handlers on the event loop call this.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.models.progress import Progress
from mlxcel_cli.answers import KEEPS_MODEL, Done, ModelReport, ModelRequest, Piece, PromptRead
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.failures import failure_text
from mlxcel_cli.plain_text import visible
from mlxcel_cli.progress_text import progress_text
from mlxcel_cli.tui.jobs import Jobs
from mlxcel_cli.tui.messages import AnswerEvents, JobFailed, LoadEvents
from mlxcel_cli.tui.transcript import AnswerTurn, UserTurn

if TYPE_CHECKING:
    from textual.timer import Timer

    from mlxcel_cli.tui.app import ChatApp

SAVE_AGAIN_S = 0.25
TRIES_UNTOLD = 4
"""A second: two windows that write at once need not be told of each other."""


class Flow:
    """The turn that is going on, and the model it goes on with.

    Args:
        app: the screen.
        model: the model to load first.
    """

    def __init__(self, app: "ChatApp", model: ModelRequest) -> None:
        self._app = app
        self._model = model
        self._session = app.session
        self._jobs: Jobs | None = None
        self._turn: AnswerTurn | None = None
        # The first load begins behind the first screen, where a quick typist may be faster.
        self.loading = "loading"
        """How far a load is, while one runs."""
        self.waits = False
        """Whether a message waits for the model."""
        self._before: ModelReport | None = None
        """The model that the one being loaded takes the place of."""
        self._continues = False
        """Whether what waits is the rest of an answer."""
        self._saving: Timer | None = None
        """Runs while something waits for the file of chats."""
        self._tries = 0

    def begin(self, new_answerer: Callable[[], Answerer]) -> None:
        """Start the engine's thread and load the first model."""
        self._jobs = Jobs(new_answerer(), self._app)
        self.load(self._model.name)

    def end(self) -> None:
        """Keep what is written, and let the engine's thread end."""
        if self._session.is_answering:
            self._session.stop()
        if self._jobs is not None:
            self._jobs.close()
            self._jobs = None

    @property
    def is_answering(self) -> bool:
        """Whether an answer is written or waited for."""
        return self.waits or self._session.is_answering

    @property
    def can_stop(self) -> bool:
        """Whether anything runs."""
        return self.is_answering or bool(self.loading)

    def forget_turn(self) -> None:
        """The turn's widget is gone."""
        self._turn = None

    async def ask(self, text: str) -> bool:
        """Add what the user typed, and answer it; False where it cannot be asked."""
        try:
            self._session.ask(text)
        except (EngineError, OSError) as error:
            self._app.say(failure_text(error), is_error=True)
            return False
        self.watch_saving()
        await self._app.transcript.add(UserTurn(text, self._app.hints.unfold))
        await self.answer()
        return True

    async def answer(self, *, continues: bool = False) -> None:
        """Answer the chat as it stands, in place of the answer that is there."""
        if self._session.model is None and not self.loading:
            self._app.say("No model is loaded; /model NAME loads one.", is_error=True)
            await self._give_back()
            return
        if (
            self._session.chat.last_answer is not None
            and self._app.transcript.last_answer is not None
        ):
            await self._app.transcript.last_answer.remove()
        self._turn = AnswerTurn(None, self._app.hints.go_on, self._app.typing)
        await self._app.transcript.add(self._turn)
        self._app.transcript.follow()
        if self._session.model is None:
            self.waits, self._continues = True, continues
            self._turn.say("waiting for the model")
            return
        assert self._jobs is not None
        try:
            self._jobs.answer(self._session.request(continues=continues))
        except EngineError as error:
            self._app.say(failure_text(error), is_error=True)
            await self._app.redraw()

    async def _give_back(self) -> None:
        """Take the unanswered turn back and put it into the prompt, unless that is in use."""
        if self._session.chat.last_answer is None and self._session.chat.messages:
            self._app.prompt.give_back(self._session.take_back())
        await self._app.redraw()

    def load(self, name: str | None) -> None:
        """Load a model in place of the one that is there."""
        assert self._jobs is not None
        self._before, self._session.model = self._session.model, None
        self.loading = "loading"
        self._model = replace(self._model, name=name)
        self._jobs.load(self._model)
        self._app.refresh_status()

    async def take_load(self, message: LoadEvents) -> None:
        """Show how far a load is; begin with the message that waits for it."""
        if self._jobs is None or message.job != self._jobs.current:
            return
        for event in message.events:
            if isinstance(event, Progress):
                self.loading = progress_text(event)
            else:
                await self._loaded(event)
        self._app.refresh_status()

    async def _loaded(self, report: ModelReport) -> None:
        self.loading = ""
        self._session.model = report
        for warning in report.warnings:
            self._app.notify(visible(warning), severity="warning", markup=False)
        if not report.has_template:
            self._app.say(f"{report.name} looks like a base model: it has no chat template.")
        if self.waits:
            self.waits = False
            if self._turn is not None:
                await self._turn.remove()
            await self.answer(continues=self._continues)

    async def take_answer(self, message: AnswerEvents) -> None:
        """Show what came of the answer."""
        if self._jobs is None or message.job != self._jobs.current or self._turn is None:
            return
        written = ""
        for event in message.events:
            self._session.take(event)
            if isinstance(event, PromptRead):
                self._turn.say(f"reading {event.done_tokens} of {event.prompt_tokens} tokens")
            elif isinstance(event, Piece):
                self._turn.say("")
                written += "" if event.is_reasoning else event.text
        self._turn.write(written)
        answer = self._session.answer
        if any(isinstance(event, Piece) and event.is_reasoning for event in message.events):
            self._turn.think(answer.reasoning, answer.numbers.reasoning_tokens)
        if isinstance(message.events[-1], Done):
            turn, self._turn = self._turn, None
            await turn.end(answer)
            self._tell_unsaved()
        self.watch_saving()
        self._app.refresh_status()

    def _tell_unsaved(self) -> None:
        if self._session.unsaved is not None and not self._session.waits_for_file:
            self._app.say(failure_text(self._session.unsaved), is_error=True)

    def watch_saving(self) -> None:
        """Save what waits for the file of chats as soon as it can be; tell a long wait."""
        if self._session.waits_for_file and self._saving is None:
            self._saving = self._app.set_interval(SAVE_AGAIN_S, self._save_again)
            self._tries = 0

    def _save_again(self) -> None:
        is_saved = self._session.save_again()
        self._tries += 1
        if is_saved and self._saving is not None:
            self._saving.stop()
            self._saving = None
        if is_saved and self._tries > TRIES_UNTOLD:
            self._app.say("The chat is saved now.")
        if not is_saved and self._tries == TRIES_UNTOLD and self._session.unsaved is not None:
            told = failure_text(self._session.unsaved)
            self._app.say(f"{told}; what is said here is saved once it can be.", is_error=True)

    async def take_failure(self, message: JobFailed) -> None:
        """Tell an error; what was typed comes back where nothing was answered."""
        if self._jobs is None or message.job != self._jobs.current:
            return
        self._app.say(failure_text(message.error), is_error=True)
        if self.loading and self._before is not None and isinstance(message.error, KEEPS_MODEL):
            self._session.model = self._before
            self._app.say(f"The chat goes on with {self._before.name}.")
        self.loading, self.waits = "", False
        if self._session.is_answering:
            self._app.prompt.give_back(self._session.fail())
            await self._app.redraw()
        else:
            await self._give_back()
        self.watch_saving()

    async def stop(self) -> None:
        """Stop what runs: the answer, the wait for the model, the load."""
        if self.waits:
            self.waits = False
            await self._give_back()
            return
        if self._jobs is None or not self.can_stop:
            self._app.say("Nothing is being written.")
            return
        self._jobs.stop()
        if self._session.is_answering:
            self._session.stop()
            turn, self._turn = self._turn, None
            if turn is not None and self._session.chat.last_answer is not None:
                await turn.end(self._session.chat.last_answer)
            elif turn is not None:
                turn.say("stopped before the first token")
            self._tell_unsaved()
            self.watch_saving()
        else:
            self.loading = ""
            self._app.say("Loading is stopped; /model NAME loads a model.")
        self._app.refresh_status()
