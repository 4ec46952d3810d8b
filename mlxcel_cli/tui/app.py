"""The chat's screen: what keys and commands do, and what the engine's events show.

The first screen is drawn before anything of a model is imported. Only handlers on the event loop
change widgets; the thread that waits for the engine posts messages.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from engine.errors import EngineError
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.slash import CommandContext, FollowUp, Reply, is_command, run_command
from mlxcel_cli.chat.start import ChatStart
from mlxcel_cli.chat.stats import context_text, speed_parts
from mlxcel_cli.failures import failure_text
from mlxcel_cli.plain_text import visible
from mlxcel_cli.tui.details import Details
from mlxcel_cli.tui.flow import Flow
from mlxcel_cli.tui.keys import CHAT_KEYS, key_of, keymap, letters_of
from mlxcel_cli.tui.messages import AnswerEvents, JobFailed, LoadEvents
from mlxcel_cli.tui.palette import actions
from mlxcel_cli.tui.prompt import Candidates, Prompt
from mlxcel_cli.tui.questions import Questions
from mlxcel_cli.tui.status_line import StatusLine
from mlxcel_cli.tui.themes import chosen_theme, remember_theme
from mlxcel_cli.tui.transcript import Hints, Note, Transcript
from mlxcel_cli.tui.typing_watch import TypingWatch

THEME_FILE = "theme"

HARMLESS = frozenset({"/help", "/?", "/stats", "/chats", "/save", "/rename"})
"""Commands that leave an answer that is being written alone."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChatApp(App[int]):
    """One chat on the screen.

    Args:
        start: what the command line settled.
        new_answerer: makes what loads and answers; called after the first screen.
        is_remote: whether a server answers.
    """

    CSS_PATH = "mlxcel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = list(CHAT_KEYS)
    TITLE = "mlxcel chat"

    def __init__(
        self,
        start: ChatStart,
        new_answerer: Callable[[ChatStart], Answerer],
        *,
        is_remote: bool = False,
    ) -> None:
        super().__init__()
        self.when_drawn: Callable[[], None] = lambda: None
        """Called once, when the first screen is there."""
        self._start = start
        self._new_answerer = new_answerer
        self.is_remote = is_remote
        self.typing = TypingWatch()
        self.session = start.session
        self.store = start.store
        self._keys = start.settings.keys
        self._theme_file = start.settings.data_home / THEME_FILE
        self._is_leaving = False
        """Whether the screen is being taken away: what widgets still tell has no place."""
        self.flow = Flow(self, start.model)
        self.questions = Questions(self)
        self.set_keymap(keymap(self._keys))
        self.theme = chosen_theme(start.options.theme, self._theme_file, self.available_themes)

    # -- the screen

    def compose(self) -> ComposeResult:
        """Transcript, details, prompt and status."""
        yield Transcript()
        yield Details()
        yield Candidates("", markup=False)
        prompt = Prompt(id="prompt", show_line_numbers=False, soft_wrap=True)
        prompt.go_on_letters = self._go_on_letters
        prompt.border_subtitle = f"{self.key('send')} sends · {self.key('help')} help"
        yield prompt
        yield StatusLine()

    async def on_mount(self) -> None:
        """Show the chat, then begin to load."""
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        if self._start.options.theme is not None:
            remember_theme(self.theme, self._theme_file)
        self.prompt.fill(self._start.draft)
        self.prompt.focus()
        await self.redraw()
        for signum in STOP_SIGNALS:
            # Raised amid the loop, as elsewhere, it would leave the terminal as it is.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                leave = partial(self._end, 128 + signum)
                asyncio.get_running_loop().add_signal_handler(signum, leave)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.when_drawn()
        self.flow.begin(partial(self._new_answerer, self._start))
        if self._start.chooses_chat:
            self.questions.chats()

    async def on_event(self, event: events.Event) -> None:
        """Note when a key comes, and take in no control characters with a paste.

        The prompt may have them, it shows marks.
        """
        if isinstance(event, events.Key):
            self.typing.note_key()
        if isinstance(event, events.Paste) and not isinstance(self.focused, Prompt):
            event = events.Paste(visible(event.text))
        await super().on_event(event)

    def on_unmount(self) -> None:
        """Let the engine's thread end."""
        self.flow.end()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers."""
        del screen
        for one in actions(self):
            yield SystemCommand(*one)

    @property
    def prompt(self) -> Prompt:
        """Where messages are typed."""
        return self.screen_stack[0].query_one(Prompt)

    @property
    def transcript(self) -> Transcript:
        """The conversation."""
        return self.screen_stack[0].query_one(Transcript)

    @property
    def hints(self) -> Hints:
        """What to press, as the keys are."""
        go_on = "" if self.is_remote else f"press {self.key('continue')} to continue"
        greeting = (
            f"Type a message, {self.key('send')} sends it. @path attaches a file. "
            f"{self.key('help')} lists keys and commands, {self.key('palette')} every action."
        )
        unfold = f"{self.key('message')} or a click"
        return Hints(go_on, f"{self.key('earlier')} shows them", greeting, unfold)

    def key(self, name: str) -> str:
        """The key of an action, as it is bound."""
        return key_of(name, self._keys)

    @property
    def chosen_keys(self) -> dict[str, str]:
        """Keys that the options file changes, by their action."""
        return dict(self._keys)

    def say(self, text: str, *, is_error: bool = False) -> None:
        """Show a notice for a while."""
        self.notify(visible(text), severity="error" if is_error else "information", markup=False)

    async def redraw(self) -> None:
        """Show the chat anew."""
        self.flow.forget_turn()
        await self.transcript.show(self.session.chat.messages, self.hints)
        self.refresh_status()

    def refresh_status(self) -> None:
        """Say how things are in the bottom line, and in the details where they are open."""
        session = self.session
        model = session.model
        lookup = ""
        if session.settings.drafts:
            lookup = f"lookup {session.lookup_refused}" if session.lookup_refused else "lookup on"
        name = "no model" if model is None else model.name
        self.screen_stack[0].query_one(StatusLine).parts = (
            self.flow.loading or name,
            *speed_parts(session.answer),
            context_text(session),
            "" if model is None else model.device,
            lookup,
        )
        details = self.screen_stack[0].query_one(Details)
        if details.display:
            details.show(session)

    # -- what the user does

    async def on_prompt_sent(self, event: Prompt.Sent) -> None:
        """Obey a command, or ask the model."""
        if self._is_leaving:
            return
        text = event.text.strip("\n")
        if is_command(text):
            sent = await self.command(text)
        elif self.flow.is_answering:
            self.say(f"An answer is being written; {self.key('stop')} stops it.")
            sent = False
        else:
            sent = await self.flow.ask(text)
        if not sent:
            self.prompt.give_back(text)

    def on_text_area_changed(self) -> None:
        """Show what TAB would complete."""
        if self._is_leaving:
            return
        self.screen_stack[0].query_one(Candidates).show_for(self.prompt.before_cursor)

    async def on_prompt_edit_asked(self) -> None:
        """Put the last turn back into the prompt."""
        if self._is_leaving:
            return
        await self.command("/edit")

    def on_prompt_follow_asked(self) -> None:
        """Follow the end of the conversation again."""
        if self._is_leaving:
            return
        self.action_follow()

    async def on_prompt_go_on_asked(self) -> None:
        """Go on with the answer that was cut off."""
        if self._is_leaving:
            return
        await self.action_continue()

    def _go_on_letters(self) -> frozenset[str]:
        can = self.session.can_continue and not self.is_remote and not self.flow.is_answering
        return letters_of("continue", self._keys) if can else frozenset()

    async def command(self, text: str) -> bool:
        """Do what a slash command says; False where it cannot be done, which is told."""
        if self.flow.is_answering and text.split()[0] not in HARMLESS:
            await self.flow.stop()
        try:
            reply = run_command(
                CommandContext(self.session, self.store, is_remote=self.is_remote), text
            )
        except (EngineError, OSError) as error:
            self.say(failure_text(error), is_error=True)
            return False
        finally:
            self.flow.watch_saving()
        if text.split()[0] in ("/help", "/?"):
            self.action_help()
        else:
            await self._obey(reply)
        return True

    async def _obey(self, reply: Reply) -> None:
        match reply.follow_up:
            case FollowUp.QUIT:
                self.action_leave()
            case FollowUp.LOAD_MODEL:
                self.flow.load(reply.text)
            case FollowUp.ANSWER:
                await self.flow.answer()
            case FollowUp.CONTINUE:
                await self.flow.answer(continues=True)
            case FollowUp.EDIT:
                self.prompt.give_back(reply.text)
                await self.redraw()
            case FollowUp.REDRAW:
                await self.redraw()
                self.say(reply.text)
            case FollowUp.NOTHING:
                if "\n" in reply.text:
                    await self.transcript.add(Note(reply.text))
                else:
                    self.say(reply.text)
        self.refresh_status()

    async def on_load_events(self, message: LoadEvents) -> None:
        """Show how far a load is."""
        await self.flow.take_load(message)

    async def on_answer_events(self, message: AnswerEvents) -> None:
        """Show what came of the answer."""
        await self.flow.take_answer(message)

    async def on_job_failed(self, message: JobFailed) -> None:
        """Tell an error."""
        await self.flow.take_failure(message)

    # -- keys

    async def action_stop(self) -> None:
        """Stop what runs: the answer, the wait for the model, the load."""
        await self.flow.stop()

    async def action_copy_or_stop(self) -> None:
        """Copy what is selected; with nothing selected, stop the answer."""
        selected = self.screen.get_selected_text() or self.prompt.selected_text
        if selected:
            self.copy_to_clipboard(selected)
            self.say("Copied.")
        elif self.flow.can_stop:
            await self.flow.stop()
        else:
            self.say(f"{self.key('leave')} leaves.")

    async def action_new_chat(self) -> None:
        """Begin an empty chat."""
        await self.command("/clear")
        self.prompt.focus()

    async def action_regenerate(self) -> None:
        """Answer the last turn again."""
        await self.command("/retry")

    async def action_continue(self) -> None:
        """Go on with an answer that was cut off."""
        if self.flow.is_answering:
            self.say("An answer is being written.")
        else:
            await self.command("/continue")

    def action_chats(self) -> None:
        """Choose one of the saved chats."""
        self.questions.chats()

    def action_help(self) -> None:
        """Show keys and commands."""
        self.questions.help()

    def action_fold(self) -> None:
        """Open or close the newest answer's thinking."""
        answer = self.transcript.last_answer
        if answer is None or not answer.toggle_fold():
            self.say("The newest answer has no thinking to show.")

    def action_unfold(self) -> None:
        """Open or close the newest message that is too long to be shown whole."""
        turn = self.transcript.last_folded
        if turn is None:
            self.say("No message here is folded.")
        else:
            turn.toggle()

    def action_details(self) -> None:
        """Show or hide counts and speed."""
        details = self.screen_stack[0].query_one(Details)
        details.display = not details.display
        self.refresh_status()

    async def action_earlier(self) -> None:
        """Show turns that are not on the screen yet."""
        if not await self.transcript.show_earlier():
            self.say("All turns are shown.")

    def action_page_up(self) -> None:
        """Scroll the conversation up."""
        self.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """Scroll the conversation down."""
        self.transcript.scroll_page_down(animate=False)

    def action_follow(self) -> None:
        """Follow the end of the conversation."""
        self.transcript.follow()

    def action_leave(self) -> None:
        """Leave; an answer that is being written is kept as far as it is."""
        self._end(0)

    def _end(self, status: int) -> None:
        self._is_leaving = True
        self.flow.end()
        self.exit(status, return_code=status)

    def _remember_theme(self, _: object) -> None:
        remember_theme(self.theme, self._theme_file)
