"""The conversation on the screen: a widget for each turn, following its end until one scrolls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget
from textual.widgets import Static

from mlxcel_cli.chat.messages import USER, ChatMessage
from mlxcel_cli.chat.stats import finish_note
from mlxcel_cli.plain_text import visible
from mlxcel_cli.tui.keys import key_of
from mlxcel_cli.tui.streaming import MarkdownWriter, TypingWatch

MOST_TURNS = 16
"""Turns that have widgets while the end is followed: each key and each delta of an answer lays out
all of them anew."""

SPARE_TURNS = 8
"""How many more there may be before the oldest go."""


FOLD_LINES = 12
FOLD_CHARACTERS = 2000
"""How much of a user's turn is shown at first; one that goes little beyond is shown whole."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What to press, as the keys are."""

    continue_answer: str = ""
    """For an answer that was cut off; empty where none can be continued."""
    earlier: str = ""
    """For turns that are not shown."""
    greeting: str = ""
    """In a chat where nothing was said."""
    unfold: str = ""
    """For a message that is folded."""

    @classmethod
    def of(cls, keys: Mapping[str, str], *, is_remote: bool) -> "Hints":
        """The hints for keys as the options file changes them.

        Args:
            keys: keys by their action.
            is_remote: whether a server answers, which cannot continue an answer.
        """
        return cls(
            "" if is_remote else f"press {key_of('continue', keys)} to continue",
            f"{key_of('earlier', keys)} shows them",
            f"Type a message, {key_of('send', keys)} sends it. @path attaches a file. "
            f"{key_of('help', keys)} lists keys and commands, "
            f"{key_of('palette', keys)} every action.",
            f"{key_of('message', keys)} or a click",
        )


class UserTurn(Static):
    """What the user said, verbatim: never read as markup. A long one is folded.

    Args:
        text: what was typed.
        unfold_hint: what opens it where it is folded.
    """

    def __init__(self, text: str, unfold_hint: str) -> None:
        self.message = ChatMessage(USER, text)
        self._text = visible(text)
        self._folded = folded(self._text, unfold_hint)
        self._is_open = False
        super().__init__(self._folded or self._text, markup=False)

    @property
    def can_fold(self) -> bool:
        """Whether it is too long to be shown whole."""
        return bool(self._folded)

    def toggle(self) -> None:
        """Open it, or fold it again."""
        if self._folded:
            self._is_open = not self._is_open
            self.update(self._text if self._is_open else self._folded)

    def on_click(self, event: events.Click) -> None:
        """Open or fold, unless the mouse has selected text."""
        if self.can_fold and not self.screen.get_selected_text():
            event.stop()
            self.toggle()


def folded(text: str, hint: str) -> str:
    """The beginning of a long text and how much follows; empty where it is shown whole."""
    lines = text.split("\n")
    if len(lines) > 2 * FOLD_LINES:
        kept = "\n".join(lines[:FOLD_LINES])[:FOLD_CHARACTERS]
        return f"{kept}\n… {len(lines) - FOLD_LINES:,} more lines · {hint}"
    if len(text) > 2 * FOLD_CHARACTERS:
        more = len(text) - FOLD_CHARACTERS
        return f"{text[:FOLD_CHARACTERS]}\n… {more:,} more characters · {hint}"
    return ""


class Note(Static):
    """A line or page that is no turn of the conversation."""

    def __init__(self, text: str, *, classes: str = "") -> None:
        super().__init__(visible(text), markup=False, classes=classes)


class AnswerTurn(Vertical):
    """An answer while it comes and after: thinking in a fold, Markdown, why it ended.

    Args:
        message: the answer, where it is there already.
        continue_hint: what to press where it was cut off.
        typing: knows when keys came, where the answer is still to be written.
    """

    virtual_size = Reactive(Size(0, 0))

    def __init__(
        self,
        message: ChatMessage | None,
        continue_hint: str,
        typing: TypingWatch | None = None,
    ) -> None:
        # The first screen shows no answer and need not wait for Markdown's parser.
        from textual.widgets import Collapsible

        from mlxcel_cli.tui.answer_markdown import AnswerMarkdown

        super().__init__()
        self.message = message
        """The answer, once it has ended."""
        self._continue_hint = continue_hint
        self._reasoning = Static("", markup=False, classes="reasoning")
        self._fold = Collapsible(self._reasoning, title="thinking", collapsed=True)
        self._markdown = AnswerMarkdown("" if message is None else visible(message.text))
        self._writer = MarkdownWriter(self._markdown, typing or TypingWatch())
        self._note = Note("", classes="finish")
        self._thinking = self._shown_note = ""

    def compose(self) -> ComposeResult:
        """Fold, text and note."""
        self._fold.display = self._note.display = False
        yield self._fold
        yield self._markdown
        yield self._note

    def on_mount(self) -> None:
        """Show what there is."""
        if self.message is not None:
            self._show_thinking(self.message.reasoning, self.message.numbers.reasoning_tokens)
            self._show_end(self.message)

    def write(self, text: str) -> None:
        """Add text of the answer."""
        self._writer.write(visible(text))

    def think(self, text: str, tokens: int) -> None:
        """Show the reasoning so far."""
        self._show_thinking(text, tokens)

    def say(self, text: str) -> None:
        """Show a note under the answer."""
        if text != self._shown_note:
            self._shown_note = text
            self._note.update(visible(text))
            self._note.display = bool(text)

    async def end(self, message: ChatMessage) -> None:
        """Show the whole answer once more, as one document, and why it ended."""
        self.message = message
        await self._writer.stop()
        await self._markdown.update(visible(message.text))
        self._show_thinking(message.reasoning, message.numbers.reasoning_tokens)
        self._show_end(message)

    def toggle_fold(self) -> bool:
        """Open or close the thinking; False where there is none."""
        if not self._thinking:
            return False
        self._fold.collapsed = not self._fold.collapsed
        return True

    def _show_thinking(self, text: str, tokens: int) -> None:
        if not text:
            return
        self._thinking = text
        self._fold.display = True
        self._fold.title = f"thinking · {tokens} tokens" if tokens else "thinking"
        self._reasoning.update(visible(text))

    def _show_end(self, message: ChatMessage) -> None:
        note = finish_note(message, self._continue_hint)
        if not note and message.reasoning and not message.text.strip():
            note = "the model only thought and wrote no answer"
        elif not note and not message.text.strip():
            note = "the model wrote nothing"
        self.say(note)


class Transcript(VerticalScroll, can_focus=True):
    """Turns from old to new.

    Args:
        hints: what to press.
    """

    virtual_size = Reactive(Size(0, 0))
    """Here and in an answer it comes from a layout. Textual's own asks for another one with it."""

    def __init__(self, hints: Hints) -> None:
        super().__init__(id="transcript")
        self._hints = hints
        self._earlier: list[ChatMessage] = []
        self._reaches_back = True
        """Whether coming to the top brings earlier turns."""

    async def show(self, messages: Sequence[ChatMessage]) -> None:
        """Show a whole chat, its newest turns; `show_earlier` or scrolling brings the others."""
        self._earlier = []
        await self.remove_children()
        self._earlier = list(messages[:-MOST_TURNS])
        await self._put(*self._widgets(messages[-MOST_TURNS:]))
        if self._earlier:
            await self._put(self._line(), before=0)
        if not messages:
            await self._put(Note(self._hints.greeting, classes="greeting"))
        self.follow()

    async def show_earlier(self) -> bool:
        """Show some of the turns that have no widgets; False where there are none."""
        if not await self._bring_earlier():
            return False
        self._reaches_back = False
        self.scroll_home(animate=False, immediate=True)
        self._reaches_back = True
        return True

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Bring earlier turns when the reader comes to the top."""
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value and self._reaches_back and not self._is_followed:
            self.call_later(self._reach_back)

    async def _reach_back(self) -> None:
        """Bring earlier turns, and keep in view what is there."""
        height = self.virtual_size.height
        if await self._bring_earlier():
            self.call_after_refresh(
                lambda: self.scroll_to(y=self.virtual_size.height - height, animate=False)
            )

    async def _bring_earlier(self) -> bool:
        if not self._earlier:
            return False
        await self.query(".earlier").remove()
        messages, self._earlier = self._earlier[-MOST_TURNS:], self._earlier[:-MOST_TURNS]
        await self._put(*self._widgets(messages), before=0)
        if self._earlier:
            await self._put(self._line(), before=0)
        return True

    async def add(self, widget: Widget) -> None:
        """Add a turn or a note at the end."""
        await self.query(".greeting").remove()
        await self._put(widget)
        if isinstance(widget, UserTurn) and self._is_followed:
            await self._drop_oldest()

    async def _drop_oldest(self) -> None:
        turns = [one for one in self.children if isinstance(one, UserTurn | AnswerTurn)]
        if len(turns) <= MOST_TURNS + SPARE_TURNS:
            return
        gone = turns[:-MOST_TURNS]
        self._earlier += [one.message for one in gone if one.message is not None]
        place = self.children.index(turns[-MOST_TURNS])
        await self.remove_children(self.children[:place])
        await self._put(self._line(), before=0)

    async def _put(self, *widgets: Widget, before: int | None = None) -> None:
        """Mount widgets, unless the screen is being removed: messages may still come to it."""
        if self.is_attached:
            await self.mount(*widgets, before=before)

    @property
    def _is_followed(self) -> bool:
        return self.is_anchored and not self._anchor_released

    def follow(self) -> None:
        """Keep the end in view until the reader scrolls."""
        self.anchor()

    @property
    def last_answer(self) -> AnswerTurn | None:
        """The newest answer."""
        answers = self.query(AnswerTurn)
        return answers.last() if answers else None

    @property
    def last_folded(self) -> UserTurn | None:
        """The newest turn that is too long to be shown whole."""
        return next((one for one in reversed(self.query(UserTurn)) if one.can_fold), None)

    def _widgets(self, messages: Sequence[ChatMessage]) -> list[Widget]:
        return [
            UserTurn(one.text if one.shown is None else one.shown, self._hints.unfold)
            if one.role == USER
            else AnswerTurn(one, self._hints.continue_answer)
            for one in messages
        ]

    def _line(self) -> Note:
        text = f"{len(self._earlier)} earlier turns · {self._hints.earlier}"
        return Note(text, classes="earlier")
