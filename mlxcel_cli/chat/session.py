"""One chat in progress: what the model is asked, the answer so far, what is saved.

Line mode and the TUI both drive this; it starts no thread and writes to no terminal.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.errors import InvalidParams
from engine.events import PrefillProgress
from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import (
    AnswerDone,
    AnswerEvent,
    AnswerRequest,
    LookupRefused,
    ModelReport,
)
from mlxcel_cli.chat.attachments import attach
from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage, Numbers
from mlxcel_cli.chat.settings import ChatSettings
from mlxcel_cli.chat.store import ChatsBusy, ChatStore
from mlxcel_cli.prompt_input import PromptInput

SAVE_EVERY_S = 1.0
"""How much of an answer a crash may lose."""

STOPPED = "stopped"
FAILED = "failed"
CUT = "length"
"""Finish causes that are shown; the engine's others are natural ends."""


@dataclass(slots=True)
class _Draft:
    """An answer while it is written."""

    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    reasoning_tokens: int = 0
    prompt_tokens: int = 0
    evaluated_tokens: int = 0
    first_s: float | None = None
    newest_s: float = 0.0
    saved_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """The rate after the first token so far."""
        span = self.newest_s - (self.first_s or 0.0)
        return (self.tokens - 1) / span if self.tokens > 1 and span > 0 else 0.0


class ChatSession:
    """A chat, its model and the answer that is being written.

    Args:
        store: where the chat is saved, None: nowhere.
        settings: how answers are sampled.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        store: ChatStore | None,
        settings: ChatSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self.settings = settings
        self.clock = clock
        self.chat = Chat(self._new_id(), system=settings.system)
        self.model: ModelReport | None = None
        self.lookup_refused = ""
        """Why the newest answer was decoded without prompt lookup, if it was asked for."""
        self.unsaved: OSError | None = None
        """Why the chat is not in the file as it is here, where that is so."""
        self._left: dict[str, Chat] = {}
        """Other chats that wait for the file, as they were left."""
        self._draft: _Draft | None = None
        self._asked_s = 0.0

    # -- the chat

    def start_new(self) -> None:
        """An empty chat with the same system text; the one that was is saved."""
        self._leave()
        self.chat = Chat(self._new_id(), system=self.settings.system)

    def resume(self, chat: Chat) -> None:
        """Continue a saved or imported chat."""
        answer = chat.last_answer
        if answer is not None and answer.finish is None:
            # The program that wrote it was killed.
            chat = chat.answered(replace(answer, finish=FAILED))
        self._leave()
        self.chat = chat
        if chat.id in self._left:
            # What the file had a moment ago is older.
            self._keep(self._left.pop(chat.id))
        self.settings.system = chat.system

    @property
    def waits_for_file(self) -> bool:
        """Whether something is to be saved once another program releases the file."""
        return bool(self._left) or isinstance(self.unsaved, ChatsBusy)

    def save_again(self) -> bool:
        """Save what could not be; whether all is saved now. ``unsaved`` says why not."""
        if self._store is None or (self.unsaved is None and not self._left):
            return True
        try:
            for chat_id in list(self._left):
                self._store.save(self._left[chat_id])
                del self._left[chat_id]
            if self.chat.messages:
                self.chat = replace(self.chat, id=self._store.save(self.chat).id)
        except OSError as error:
            self.unsaved = error
            return False
        self.unsaved = None
        return True

    def rename(self, title: str) -> None:
        """Give the chat another title."""
        self._change(replace(self.chat, title=title.strip()))

    def set_system(self, text: str) -> None:
        """Give this and later chats another system text."""
        self.settings.system = text.strip()
        self._change(replace(self.chat, system=self.settings.system))

    def ask(self, typed: str) -> None:
        """Add what the user typed, with the files it mentions.

        Raises:
            InvalidParams: a file is too large or no text, or the chat cannot be saved.
            OSError: a file cannot be read.
        """
        text = attach(typed)
        self._change(self.chat.asked(text, shown=typed))

    def take_back(self) -> str:
        """Remove the last turn; what the user had typed, empty where there is none."""
        typed = self.chat.last_asked
        self._keep(self.chat.without_last_turn())
        return typed or ""

    # -- the answer

    @property
    def is_generating(self) -> bool:
        """Whether an answer is being written."""
        return self._draft is not None

    @property
    def can_continue(self) -> bool:
        """Whether the last answer was cut off and can be continued."""
        answer = self.chat.last_answer
        ends = (CUT, STOPPED, FAILED)
        return answer is not None and answer.finish in ends and bool(answer.text.strip())

    def request(self, *, continues: bool = False) -> AnswerRequest:
        """Start an answer to the chat as it stands: what the model is asked.

        Args:
            continues: continue the last answer instead of writing another.

        Raises:
            InvalidParams: there is nothing to answer, or a setting is out of range.
        """
        answer = self.chat.last_answer
        prefill = answer.text if continues and answer is not None else ""
        chat = self.chat.without_answer()
        if not chat.messages:
            raise InvalidParams("prompt", "is empty: there is nothing to answer")
        values: dict[str, object] = {}
        if self.model is not None and self.model.can_switch_thinking:
            values["enable_thinking"] = self.settings.thinking
        request = replace(
            self.settings.request(self.model),
            prompt=PromptInput(chat.for_model(), prefill=prefill, template_values=values),
        )
        self._draft = _Draft(reasoning=answer.reasoning if prefill and answer else "")
        self._asked_s = self._draft.saved_s = self.clock()
        self.lookup_refused = ""
        return request

    def take(self, event: AnswerEvent) -> None:
        """Record an event of the answer; it is saved from time to time, and at its end."""
        draft = self._draft
        if draft is None:
            return
        if isinstance(event, LookupRefused):
            self.lookup_refused = event.reason
        elif isinstance(event, TextDelta):
            self._add(draft, event)
        elif isinstance(event, AnswerDone):
            finish = event.finish
            self._end(self._message(draft, finish, _numbers(event, draft)))
        else:
            assert isinstance(event, PrefillProgress)
            if not draft.prompt_tokens:
                # The first one shows what need not be prefilled.
                draft.prompt_tokens = event.prompt_tokens
                draft.evaluated_tokens = max(event.prompt_tokens - event.done_tokens, 1)

    def stop(self) -> None:
        """End the answer as the user wants; what was written stays."""
        self._break_off(STOPPED)

    def fail(self) -> str:
        """End the answer after an error.

        Returns:
            What the user had typed, taken back, where nothing was written; else nothing.
        """
        draft = self._draft
        wrote = draft is not None and bool(draft.text or draft.reasoning)
        self._break_off(FAILED)
        # An answer that was to be replaced is still there.
        return "" if wrote or self.chat.last_answer is not None else self.take_back()

    @property
    def answer(self) -> ChatMessage:
        """The answer as far as it is written, or the last one."""
        if self._draft is None:
            return self.chat.last_answer or ChatMessage(ASSISTANT, "")
        return self._message(self._draft, None, self._live(self._draft))

    def _add(self, draft: _Draft, delta: TextDelta) -> None:
        now = self.clock()
        if delta.tokens and draft.first_s is None:
            draft.first_s = now
        draft.tokens, draft.newest_s = max(draft.tokens, delta.tokens), now
        if delta.is_reasoning:
            draft.reasoning += delta.text
            draft.reasoning_tokens = draft.tokens
        else:
            draft.text += delta.text
        if now - draft.saved_s >= SAVE_EVERY_S:
            draft.saved_s = now
            self._keep(self.chat.answered(self._message(draft, None, self._live(draft))))

    def _break_off(self, finish: str) -> None:
        draft = self._draft
        if draft is None:
            return
        if draft.text or draft.reasoning:
            self._end(self._message(draft, finish, self._live(draft)))
        else:
            self._draft = None

    def _end(self, answer: ChatMessage) -> None:
        self._draft = None
        chat = self.chat.answered(answer)
        if self.model is not None:
            chat = replace(chat, model=self.model.name)
        self._keep(chat)

    def _message(self, draft: _Draft, finish: str | None, numbers: Numbers) -> ChatMessage:
        return ChatMessage(ASSISTANT, draft.text, draft.reasoning, finish, numbers)

    def _live(self, draft: _Draft) -> Numbers:
        first = self._asked_s if draft.first_s is None else draft.first_s
        return Numbers(
            prompt_tokens=draft.prompt_tokens,
            evaluated_tokens=draft.evaluated_tokens,
            answer_tokens=draft.tokens,
            ttft_s=first - self._asked_s,
            tokens_per_s=draft.tokens_per_s,
            reasoning_tokens=draft.reasoning_tokens,
        )

    def _change(self, chat: Chat) -> None:
        """Save the chat, then take it for this one: what cannot be saved changes nothing."""
        unsaved = None
        if self._store is not None and chat.messages:
            try:
                chat = self._store.save(chat)
            except ChatsBusy as error:
                # That passes: the next save, or `save_again`, writes this too.
                unsaved = error
        self.chat, self.unsaved = chat, unsaved

    def _keep(self, chat: Chat) -> None:
        """Continue with the chat even where it cannot be saved: an answer is not lost for that."""
        self.chat = chat
        try:
            self._change(chat)
        except OSError as error:
            self.unsaved = error

    def _leave(self) -> None:
        """Another chat takes this one's place."""
        if self.unsaved is not None:
            self._left[self.chat.id] = self.chat
        self.unsaved = None

    def _new_id(self) -> str:
        return "" if self._store is None else self._store.new_id()


def _numbers(done: AnswerDone, draft: _Draft) -> Numbers:
    timings = done.timings
    return Numbers(
        prompt_tokens=done.usage.prompt_tokens,
        evaluated_tokens=timings.prompt_n,
        answer_tokens=timings.predicted_n,
        ttft_s=timings.ttft_s,
        tokens_per_s=timings.predicted_per_second,
        drafted_tokens=timings.draft_n,
        accepted_tokens=timings.draft_n_accepted,
        reasoning_tokens=draft.reasoning_tokens,
        seed=done.seed,
    )
