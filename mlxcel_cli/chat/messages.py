"""A chat as values: its turns, and the chat after a question, an answer, an edit or a stop.

Every change gives a new value, so that what is shown, saved and sent cannot drift apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

TITLE_CHARACTERS = 60

USER = "user"
ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Counts and seconds of one answer, for the status line and the details panel."""

    prompt_tokens: int = 0
    """Tokens of the whole prompt."""
    evaluated_tokens: int = 0
    """Those that were prefilled; the others' KV was cached."""
    answer_tokens: int = 0
    ttft_s: float = 0.0
    tokens_per_s: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    reasoning_tokens: int = 0
    seed: int | None = None

    @property
    def tokens_per_forward(self) -> float | None:
        """Mean number of tokens a forward produced, without the first one (the prefill's).

        Every accepted token spared a forward. An answer is at most this many times as fast as a
        plain one, for a forward that checks drafts takes longer. None where nothing was drafted.
        """
        written = self.answer_tokens - 1
        forwards = written - self.accepted_tokens
        return written / forwards if self.drafted_tokens and forwards > 0 else None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn."""

    role: str
    """``user`` or ``assistant``."""
    text: str
    reasoning: str = ""
    finish: str | None = None
    """Why an answer ended; ``stopped`` by the user, ``failed``, None while it is written."""
    numbers: Numbers = field(default=Numbers())
    shown: str | None = None
    """What a reader sees in place of ``text``: the prompt as it was typed, without the files."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation: after a user's turn comes at most one answer."""

    id: str
    title: str = ""
    system: str = ""
    model: str = ""
    messages: tuple[ChatMessage, ...] = ()

    def asked(self, text: str, shown: str | None = None) -> "Chat":
        """With a user's turn at the end; the first one names the chat."""
        title = self.title or title_of(text if shown is None else shown)
        message = ChatMessage(USER, text, shown=None if shown == text else shown)
        return replace(self, title=title, messages=(*self.messages, message))

    def answered(self, answer: ChatMessage) -> "Chat":
        """With ``answer`` after the last user's turn, in place of the one that was there."""
        kept = self.messages
        if kept and kept[-1].role == ASSISTANT:
            kept = kept[:-1]
        return replace(self, messages=(*kept, answer))

    def without_answer(self) -> "Chat":
        """Without the answer at its end, if there is one: ready to be answered again."""
        if self.messages and self.messages[-1].role == ASSISTANT:
            return replace(self, messages=self.messages[:-1])
        return self

    def without_last_turn(self) -> "Chat":
        """Without the last user's turn and what came after it."""
        places = [i for i, one in enumerate(self.messages) if one.role == USER]
        return replace(self, messages=self.messages[: places[-1]]) if places else self

    @property
    def last_asked(self) -> str | None:
        """What the user typed last."""
        asked = (one for one in reversed(self.messages) if one.role == USER)
        last = next(asked, None)
        return None if last is None else (last.text if last.shown is None else last.shown)

    @property
    def last_answer(self) -> ChatMessage | None:
        """The answer at its end."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role == ASSISTANT else None

    @property
    def newest_answer(self) -> str | None:
        """The text of the newest answer, wherever it stands."""
        return next((one.text for one in reversed(self.messages) if one.role == ASSISTANT), None)

    @property
    def new_tokens(self) -> tuple[int, ...]:
        """Of each answer, the prompt tokens that come after the text of the answer before it.

        They are the user's words and the template's around them: no cache can spare them. What
        `Numbers.evaluated_tokens` exceeds them by was read again.
        """
        counts: list[int] = []
        known = 0
        for one in self.messages:
            if one.role == ASSISTANT:
                numbers = one.numbers
                counts.append(max(numbers.prompt_tokens - known, 0))
                # Reasoning is left out of later prompts.
                answer = numbers.answer_tokens - numbers.reasoning_tokens
                known = numbers.prompt_tokens + answer
        return tuple(counts)

    def for_model(self) -> tuple[dict[str, object], ...]:
        """OpenAI-shaped messages: the system text, then the turns without their reasoning."""
        turns: list[dict[str, object]] = []
        if self.system:
            turns.append({"role": "system", "content": self.system})
        turns += ({"role": one.role, "content": one.text} for one in _alternating(self.messages))
        return tuple(turns)


def title_of(text: str) -> str:
    """A title from a prompt's first line."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if len(line) <= TITLE_CHARACTERS:
        return line
    return line[: TITLE_CHARACTERS - 1].rstrip() + "…"


def code_blocks(markdown: str) -> list[str]:
    """The contents of the fenced blocks of a Markdown text; one that is not closed too."""
    blocks: list[str] = []
    fence, lines = "", list[str]()
    for line in markdown.splitlines():
        stripped = line.strip()
        if fence:
            if stripped.startswith(fence) and not stripped.strip(fence[0]):
                blocks.append("\n".join(lines))
                fence, lines = "", []
            else:
                lines.append(line)
        elif stripped.startswith(("```", "~~~")):
            mark = stripped[0]
            fence = mark * (len(stripped) - len(stripped.lstrip(mark)))
    if fence and lines:
        blocks.append("\n".join(lines))
    return blocks


def _alternating(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Turns as templates want them: a user's turn whose answer said nothing joins the next."""
    turns: list[ChatMessage] = []
    for message in messages:
        if message.role == ASSISTANT and not message.text:
            continue
        if turns and turns[-1].role == message.role == USER:
            joined = f"{turns[-1].text}\n\n{message.text}"
            turns[-1] = replace(turns[-1], text=joined)
        else:
            turns.append(message)
    return turns
