"""Prompts of every API, rendered and encoded."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from engine.errors import InvalidParams
from engine.text.answer_text import AnswerText, ThinkingMarks
from engine.text.rendered import RenderedPrompt
from mlxcel_cli.serve.served_model import ServedModel

MAX_PROMPTS = 64
"""Prompts that one request may hold."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt, rendered and encoded."""

    ids: tuple[int, ...]
    text: str
    opens_thinking: bool = False
    continues_thinking: bool = False
    """Whether it also holds some of the reasoning that it opens."""
    continues_text: bool = True
    """Whether the answer continues its text; otherwise the answer is a turn of its own."""
    template: str = ""
    """Signature of the template that made it."""
    history_tokens: int | None = None
    """Where the conversation ends and the call for an answer begins, where that is needed."""

    def answer_text(self, marks: Sequence[ThinkingMarks]) -> AnswerText:
        """An empty answer to it, which splits reasoning off by ``marks``."""
        return AnswerText(marks, inside=self.opens_thinking, begun=self.continues_thinking)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation that is to be answered, whichever API it came by."""

    messages: Sequence[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final: bool = False
    """Whether the last message is continued, instead of beginning a turn."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """More variables for the chat template."""


def encode_chat(chat: ChatPrompt, model: ServedModel, *, must_fit: bool = True) -> EncodedPrompt:
    """The conversation as the model reads it.

    Args:
        chat: the conversation.
        model: whose template and tokenizer are used.
        must_fit: whether one that surely does not fit the context is refused unread.

    Raises:
        InvalidParams: a message has no proper shape, or the model has no chat template.
        TemplateError: the template refused the messages.
        ContextOverflow: the conversation is far too long.
    """
    template = model.template
    if template is None:
        raise InvalidParams(
            "messages",
            f"{model.facts.name} has no chat template (it looks like a base model); "
            "use /v1/completions",
        )
    if must_fit:
        # No template makes less than a token of a message.
        model.limit.check(range(len(chat.messages)))
    rendered = template.render(
        chat.messages,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final=chat.continue_final,
        extra=chat.variables,
    )
    if must_fit:
        model.limit.check((rendered.text,))
    ids = model.tokenizer.encode_rendered(rendered)
    history: int | None = None
    if model.keeps_whole_kv and chat.add_generation_prompt:
        said = template.render(chat.messages, add_generation_prompt=False, extra=chat.variables)
        pairs = zip(ids, model.tokenizer.encode_rendered(said), strict=False)
        history = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return EncodedPrompt(
        ids,
        rendered.text,
        rendered.opens_thinking,
        rendered.continues_thinking,
        rendered.continues_text,
        template=hashlib.sha256((model.facts.template_text or "").encode()).hexdigest()[:16],
        history_tokens=history,
    )


def encode_text(content: Sequence[str | int], model: ServedModel) -> EncodedPrompt:
    """One prompt of texts and token ids; it begins as the model's texts do, unless with an id.

    Raises:
        InvalidParams: an id is no token of the model.
        ContextOverflow: it is far too long.
    """
    tokenizer = model.tokenizer
    model.limit.check(content)
    if len(content) == 1 and isinstance(content[0], str):
        return EncodedPrompt(tokenizer.encode_rendered(RenderedPrompt(content[0])), content[0])
    ids = mixed_ids(content, model, field="prompt", parse_special=True)
    bos = tokenizer.bos_id
    if content and isinstance(content[0], str) and tokenizer.adds_bos and bos is not None:
        ids = ids if ids[:1] == (bos,) else (bos, *ids)
    return EncodedPrompt(ids, tokenizer.decode(ids, skip_special=False))


def mixed_ids(
    content: Sequence[str | int], model: ServedModel, *, field: str, parse_special: bool
) -> tuple[int, ...]:
    """The ids of texts and of the ids between them.

    Raises:
        InvalidParams: an id is no token of the model; names ``field``.
    """
    ids: list[int] = []
    for one in content:
        if isinstance(one, str):
            ids += model.tokenizer.encode(one, parse_special=parse_special)
            continue
        if not 0 <= one < model.facts.vocab_size:
            raise InvalidParams(
                field, f"token id {one} is outside this model's {model.facts.vocab_size} tokens"
            )
        ids.append(one)
    return tuple(ids)
