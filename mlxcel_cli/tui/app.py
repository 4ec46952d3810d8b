"""The chat's screen: which widgets it has, and what keys and commands do with them.

The first screen is drawn before anything of a model is imported.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from engine.errors import EngineError
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.messages import code_blocks
from mlxcel_cli.chat.slash import FollowUp, Reply, is_command, run_command
from mlxcel_cli.chat.start import ChatStart
from mlxcel_cli.failures import failure_text
from mlxcel_cli.plain_text import visible
from mlxcel_cli.tui.conversation import Conversation
from mlxcel_cli.tui.keys import CHAT_KEYS, characters_of, key_of, keymap
from mlxcel_cli.tui.palette import offers
from mlxcel_cli.tui.prompt import Candidates, PromptArea
from mlxcel_cli.tui.status import Details, StatusLine, notice
from mlxcel_cli.tui.streaming import TypingWatch
from mlxcel_cli.tui.themes import chosen_theme, save_theme
from mlxcel_cli.tui.transcript import Hints, Note

if TYPE_CHECKING:
    from mlxcel_cli.tui.dialogs import Choose

THEME_FILE = "theme"

HARMLESS = frozenset({"/help", "/?", "/stats", "/chats", "/save", "/rename"})
"""Commands that leave an answer that is being written alone."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChatApp(App[int]):
    """One chat on the screen.

    Args:
        start: what the command line settled.
        new_answerer: makes what loads and answers; called after the first screen.
    """

    CSS_PATH = "mlxcel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = list(CHAT_KEYS)
    TITLE = "mlxcel chat"

    def __init__(self, start: ChatStart, new_answerer: Callable[[ChatStart], Answerer]) -> None:
        super().__init__()
        self.when_drawn: Callable[[], None] = lambda: None
        """Called once, when the first screen is there."""
        self.session = start.session
        self.command_context = start.context
        self._start = start
        self._new_answerer = new_answerer
        self._typing = TypingWatch()
        self._keys = start.settings.keys
        self._theme_file = start.settings.data_home / THEME_FILE
        self._is_leaving = False
        """Whether the screen is being removed: what its widgets still post has no effect."""
        self.set_keymap(keymap(self._keys))
        self.theme = chosen_theme(start.options.theme, self._theme_file, self.available_themes)
        hints = Hints.of(self._keys, is_remote=start.context.is_remote)
        self.conversation = Conversation(self.session, start.model, hints, self._typing)
        self.prompt = PromptArea(self._continue_characters)
        self.prompt.border_subtitle = f"{self._key('send')} sends · {self._key('help')} help"
        self._candidates = Candidates("", markup=False)
        self._details = Details(self.session)
        self._status = StatusLine(self.session)

    # -- the screen

    def compose(self) -> ComposeResult:
        """Conversation, details, prompt and status."""
        yield self.conversation
        yield self._details
        yield self._candidates
        yield self.prompt
        yield self._status

    async def on_mount(self) -> None:
        """Show the chat, then begin to load."""
        self.theme_changed_signal.subscribe(self, self._save_theme)
        if self._start.options.theme is not None:
            save_theme(self.theme, self._theme_file)
        self.prompt.fill(self._start.draft)
        self.prompt.focus()
        await self.conversation.show()
        for signum in STOP_SIGNALS:
            # Raised amid the loop, as elsewhere, it would leave the terminal as it is.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                leave = partial(self._end, 128 + signum)
                asyncio.get_running_loop().add_signal_handler(signum, leave)
        self.call_after_refresh(self.begin)

    def begin(self) -> None:
        """Start the engine and load the model: the first screen is there."""
        self.when_drawn()
        self.conversation.begin(partial(self._new_answerer, self._start))
        if self._start.chooses_chat:
            self.action_chats()

    async def on_event(self, event: events.Event) -> None:
        """Note when a key comes, and take in no control characters with a paste.

        The prompt may have them, it shows marks.
        """
        if isinstance(event, events.Key):
            self._typing.note_key()
        if isinstance(event, events.Paste) and not isinstance(self.focused, PromptArea):
            event = events.Paste(visible(event.text))
        await super().on_event(event)

    def on_unmount(self) -> None:
        """Let the engine's thread end."""
        self.conversation.end()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers."""
        del screen
        for title, about, action in offers(self.command_context):
            yield SystemCommand(title, about, partial(self.run_action, action))

    def _key(self, name: str) -> str:
        """The key of an action, as it is bound."""
        return key_of(name, self._keys)

    # -- what the widgets post

    def on_conversation_changed(self) -> None:
        """Show how things are in the bottom line, and in the details where they are open."""
        self._status.show(self.conversation.load_progress)
        self._details.show()

    def on_conversation_taken_back(self, event: Conversation.TakenBack) -> None:
        """Put a message that was not answered before what was typed meanwhile."""
        self.prompt.give_back(event.text)

    async def on_prompt_area_sent(self, event: PromptArea.Sent) -> None:
        """Run a command, or ask the model."""
        if self._is_leaving:
            return
        text = event.text.strip("\n")
        if is_command(text):
            is_done = await self.action_run(text)
        elif self.conversation.is_generating:
            notice(self, f"An answer is being written; {self._key('stop')} stops it.")
            is_done = False
        else:
            is_done = await self.conversation.ask(text)
        if not is_done:
            self.prompt.give_back(text)

    def on_text_area_changed(self) -> None:
        """Show what TAB would complete."""
        if not self._is_leaving:
            self._candidates.show_for(self.prompt.before_cursor)

    async def on_prompt_area_edit_requested(self) -> None:
        """Put the last turn back into the prompt."""
        await self.action_run("/edit")

    def on_prompt_area_follow_requested(self) -> None:
        """Follow the end of the conversation again."""
        self.action_follow()

    async def on_prompt_area_continue_requested(self) -> None:
        """Continue the answer that was cut off."""
        await self.action_continue()

    def _continue_characters(self) -> frozenset[str]:
        can = self.command_context.can_continue and not self.conversation.is_generating
        return characters_of("continue", self._keys) if can else frozenset()

    # -- commands

    async def action_run(self, command: str) -> bool:
        """Run a slash command; False where it fails, with a notice."""
        if self._is_leaving:
            return True
        name = command.split()[0]
        if self.conversation.is_generating and name not in HARMLESS:
            await self.conversation.stop()
        try:
            reply = run_command(self.command_context, command)
        except (EngineError, OSError) as error:
            notice(self, failure_text(error), "error")
            return False
        finally:
            self.conversation.watch_saving()
        if name in ("/help", "/?"):
            self.action_help()
        else:
            await self._follow_up(reply)
        return True

    async def _follow_up(self, reply: Reply) -> None:
        match reply.follow_up:
            case FollowUp.QUIT:
                self.action_leave()
            case FollowUp.LOAD_MODEL:
                self.conversation.load(reply.text)
            case FollowUp.ANSWER:
                await self.conversation.answer()
            case FollowUp.CONTINUE:
                await self.conversation.answer(continues=True)
            case FollowUp.EDIT:
                self.prompt.give_back(reply.text)
                await self.conversation.show()
            case FollowUp.REDRAW:
                await self.conversation.show()
                notice(self, reply.text)
            case FollowUp.NOTHING if "\n" in reply.text:
                await self.conversation.transcript.add(Note(reply.text))
            case FollowUp.NOTHING:
                notice(self, reply.text)
        self.on_conversation_changed()

    def action_ask(self, name: str) -> None:
        """Ask for the argument of a command, then run it."""
        from mlxcel_cli.tui.dialogs import QUESTIONS

        self.push_screen(QUESTIONS[name](self.command_context, self._keys), self._run_answer)

    def action_chats(self) -> None:
        """Choose one of the saved chats."""
        if self.command_context.store is None:
            notice(self, "Chats are not saved here (--no-save).")
            return
        from mlxcel_cli.tui.dialogs import chats_dialog

        self.push_screen(chats_dialog(self.command_context.store, self._keys), self._run_answer)

    async def _run_answer(self, command: str | None) -> None:
        if command is not None:
            await self.action_run(command)

    async def on_choose_delete_pressed(self, event: "Choose.DeletePressed") -> None:
        """Delete a saved chat."""
        await self.action_run(f"/delete {event.value}")
        event.dialog.refresh_choices()

    def action_help(self) -> None:
        """Show keys and commands."""
        from mlxcel_cli.tui.dialogs import Help

        self.push_screen(Help(self._keys))

    async def action_new_chat(self) -> None:
        """Begin an empty chat."""
        await self.action_run("/clear")
        self.prompt.focus()

    async def action_regenerate(self) -> None:
        """Answer the last turn again."""
        await self.action_run("/retry")

    async def action_continue(self) -> None:
        """Continue an answer that was cut off."""
        if self.conversation.is_generating:
            notice(self, "An answer is being written.")
        else:
            await self.action_run("/continue")

    # -- keys

    async def action_stop(self) -> None:
        """Stop what runs: the answer, the wait for the model, the load."""
        await self.conversation.stop()

    async def action_copy_or_stop(self) -> None:
        """Copy what is selected; with nothing selected, stop the answer."""
        selected = self.screen.get_selected_text() or self.prompt.selected_text
        if selected:
            self._copy(selected)
        elif self.conversation.can_stop:
            await self.conversation.stop()
        else:
            notice(self, f"{self._key('leave')} leaves.")

    def action_copy_answer(self, block: int = 0) -> None:
        """Copy the newest answer, or one of its code blocks, counted from 1."""
        answer = self.session.chat.newest_answer or ""
        self._copy(code_blocks(answer)[block - 1] if block else answer)

    def _copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        notice(self, "Copied.")

    def action_fold(self) -> None:
        """Open or close the newest answer's thinking."""
        answer = self.conversation.transcript.last_answer
        if answer is None or not answer.toggle_fold():
            notice(self, "The newest answer has no thinking to show.")

    def action_unfold(self) -> None:
        """Open or close the newest message that is too long to be shown whole."""
        turn = self.conversation.transcript.last_folded
        if turn is None:
            notice(self, "No message here is folded.")
        else:
            turn.toggle()

    def action_details(self) -> None:
        """Show or hide counts and speed."""
        self._details.display = not self._details.display
        self._details.show()

    async def action_earlier(self) -> None:
        """Show turns that are not on the screen yet."""
        if not await self.conversation.transcript.show_earlier():
            notice(self, "All turns are shown.")

    def action_page_up(self) -> None:
        """Scroll the conversation up."""
        self.conversation.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """Scroll the conversation down."""
        self.conversation.transcript.scroll_page_down(animate=False)

    def action_follow(self) -> None:
        """Follow the end of the conversation."""
        self.conversation.transcript.follow()

    def action_leave(self) -> None:
        """Leave; an answer that is being written is kept as far as it is."""
        self._end(0)

    def _end(self, status: int) -> None:
        self._is_leaving = True
        self.conversation.end()
        self.exit(status, return_code=status)

    def _save_theme(self, _: object) -> None:
        save_theme(self.theme, self._theme_file)
