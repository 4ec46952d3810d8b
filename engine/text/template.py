"""Turns chat messages into a prompt, by the model's own chat template."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.errors import InvalidParams, ModelFileError, TemplateError
from engine.text.answer_text import ThinkingMarks, marks_of
from engine.text.look_alikes import LookAlikes, free_characters
from engine.text.messages import (
    CheckedMessage,
    Message,
    check_messages,
    first_missing,
    merge_system,
    parse_arguments,
    shows_system,
    with_parts,
)
from engine.text.rendered import RenderedPrompt
from engine.text.sandbox import CompiledTemplate
from engine.text.tokenizer import Tokenizer, read_json

NO_EXTRA: Mapping[str, object] = MappingProxyType({})

_PROBE = "PROBE"
"""A message that shows in which form a template reads content."""

PLAIN_CUES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
"""How turns are headed for a model without a chat template."""


class ChatTemplate:
    """A model's chat template. Safe to share between threads.

    Attributes:
        source: its Jinja text.
        name: what errors call it.
        thinking_marks: the marks of the model's reasoning; empty when it does not reason.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        special_texts: Collection[str] = (),
        tool_use: str | None = None,
        name: str = "the chat template",
    ) -> None:
        """Compile a template.

        Args:
            source: its Jinja text.
            bos: the text of the token that begins a prompt.
            eos: the text of the token that ends a turn.
            special_texts: names that must not become tokens when a user writes them.
            tool_use: another template, for requests with tools.
            name: what errors call it.

        Raises:
            TemplateError: naming the line.
        """
        self.source = source
        self.name = name
        self.thinking_marks: tuple[ThinkingMarks, ...] = marks_of(source)
        self._names = {"bos_token": bos, "eos_token": eos}
        self._look_alikes = LookAlikes({*special_texts, bos, eos} - {""})
        self._plain = CompiledTemplate(source, name=name, now=_now)
        self._wants_parts = self._reads_parts_only()
        self._tool_use = None
        if tool_use is not None:
            self._tool_use = CompiledTemplate(tool_use, name=f"{name} (tool_use)", now=_now)

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer) -> "ChatTemplate | None":
        """A model folder's template; None when it has none (a base model).

        Raises:
            ModelFileError: a file is broken.
            TemplateError: the template is.
        """
        found = find_templates(folder)
        if found is None:
            return None
        path, sources = found
        default = sources.get("default", next(iter(sources.values())))
        return cls(
            default,
            bos=tokenizer.bos_text,
            eos=tokenizer.eos_text,
            special_texts=tokenizer.special_texts,
            tool_use=sources.get("tool_use"),
            name=f"{path.parent.name}/{path.name}",
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        extra: Mapping[str, object] = NO_EXTRA,
    ) -> RenderedPrompt:
        """The prompt for these messages.

        A template without a system role gets the system text at the head of the next user turn.

        Args:
            messages: the turns so far, in any form that ``check_messages`` takes.
            add_generation_prompt: whether to end where the assistant's turn begins.
            continue_final: whether to end inside the last message instead, which is the
                assistant's: the answer continues it.
            extra: more variables for the template: ``tools``, ``enable_thinking``, …

        Raises:
            InvalidParams: a message has no proper shape; names the field.
            TemplateError: the template refused them; names the template and its line.
        """
        checked = check_messages(messages)
        if continue_final and checked[-1]["role"] != "assistant":
            raise InvalidParams("messages", "the last one must be the assistant's to be continued")
        cut, end = free_characters(2, [checked, dict(extra), self.source])
        turns: list[CheckedMessage] = self._look_alikes.cut(checked, cut)
        if continue_final:
            turns[-1]["content"] += end
        variables = {
            "tools": None,
            "documents": None,
            **self._names,
            **self._look_alikes.cut(dict(extra), cut),
            "add_generation_prompt": add_generation_prompt and not continue_final,
        }
        text = self._render_first_accepted(turns, variables)
        if continue_final:
            text, found, _ = text.rpartition(end)
            if not found:
                raise TemplateError(f"{self.name} does not print the message to be continued")
        text, literals = self._look_alikes.restore(text, cut)
        start = _prefill_start(text, checked[-1]["content"]) if continue_final else None
        return RenderedPrompt(text, literals, start, self.thinking_marks)

    def _reads_parts_only(self) -> bool:
        """Whether content is printed where it is a list of parts, and not where it is a string."""
        probe = [{"role": "user", "content": _PROBE}]
        return not self._prints_probe(probe) and self._prints_probe(with_parts(probe))

    def _prints_probe(self, messages: list[CheckedMessage]) -> bool:
        variables = {"tools": None, "documents": None, "add_generation_prompt": False}
        try:
            return _PROBE in self._plain.render({**variables, **self._names, "messages": messages})
        except TemplateError:
            return False

    def _render_first_accepted(
        self, turns: list[CheckedMessage], variables: Mapping[str, Any]
    ) -> str:
        """The first form of the messages that the template takes, else its first refusal."""
        compiled = self._plain
        if self._tool_use is not None and variables["tools"]:
            compiled = self._tool_use
        refusal: TemplateError | None = None
        incomplete: str | None = None
        for form in _forms(turns):
            messages = with_parts(form) if self._wants_parts else form
            try:
                text = compiled.render({**variables, "messages": messages})
            except TemplateError as error:
                refusal = refusal or error
                continue
            missing = first_missing(text, form)
            if missing is None and shows_system(text, form):
                return text
            if missing is None:
                incomplete = incomplete or text
                continue
            role = form[missing]["role"]
            refusal = refusal or TemplateError(
                f"{self.name} prints nothing of messages[{missing}], whose role is {role!r}"
            )
        if incomplete is not None:
            return incomplete
        assert refusal is not None
        raise refusal


def render_messages(
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    continue_final: bool = False,
    extra: Mapping[str, object] = NO_EXTRA,
) -> RenderedPrompt:
    """The prompt for these messages, by `ChatTemplate.render` or `plain_prompt`.

    Raises:
        InvalidParams: a message has no proper shape; names the field.
        TemplateError: the template refused them.
    """
    if template is None:
        return plain_prompt(messages, continue_final=continue_final)
    return template.render(messages, continue_final=continue_final, extra=extra)


def plain_prompt(messages: Sequence[Message], *, continue_final: bool = False) -> RenderedPrompt:
    """A prompt for a model without a chat template: headed blocks and a bare cue at the end.

    Args:
        messages: the turns so far, in any form that ``check_messages`` takes.
        continue_final: whether to end inside the last message, the assistant's.

    Raises:
        InvalidParams: a message has no proper shape; names the field.
    """
    checked = check_messages(messages)
    if continue_final and checked[-1]["role"] != "assistant":
        raise InvalidParams("messages", "the last one must be the assistant's to be continued")
    blocks = [
        f"{PLAIN_CUES.get(message['role'], message['role'].title())}: {message['content']}"
        for message in checked
    ]
    start = None
    if not continue_final:
        blocks.append(f"{PLAIN_CUES['assistant']}:")
    text = "\n\n".join(blocks)
    if continue_final:
        start = len(text) - len(checked[-1]["content"])
    return RenderedPrompt(text, ((0, len(text)),), prefill_start=start)


def find_templates(folder: Path) -> tuple[Path, dict[str, str]] | None:
    """The file that holds the templates, and the templates by name; None when none does.

    ``chat_template.jinja`` comes first, then ``chat_template.json``, then
    ``tokenizer_config.json``. A lone template is named ``default``.

    Raises:
        ModelFileError: a file is broken.
    """
    path = folder / "chat_template.jinja"
    try:
        return path, {"default": path.read_text(encoding="utf-8-sig")}
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(path, f"is not readable text: {error}") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        sources = _named_sources(read_json(path).get("chat_template"), path)
        if sources:
            return path, sources
    return None


def _forms(turns: list[CheckedMessage]) -> Iterator[list[CheckedMessage]]:
    """The messages as most templates want them, then as some others do."""
    yield parse_arguments(turns)
    if any("tool_calls" in turn for turn in turns):
        yield turns
    if any(turn["role"] == "system" for turn in turns):
        yield parse_arguments(merge_system(turns))


def _prefill_start(text: str, content: str) -> int:
    """Where the last message begins in a prompt that ends inside it."""
    for form in (content, content.lstrip()):
        if text.endswith(form):
            return len(text) - len(form)
    return len(text)


def _now() -> datetime:
    return datetime.now().astimezone()


def _named_sources(value: object, path: Path) -> dict[str, str]:
    match value:
        case None | "" | []:
            return {}
        case str():
            return {"default": value}
        case list():
            pass
        case _:
            raise ModelFileError(path, "chat_template is neither a string nor a list")
    sources: dict[str, str] = {}
    for entry in value:
        match entry:
            case {"name": str(name), "template": str(template)}:
                sources[name] = template
            case _:
                raise ModelFileError(path, "chat_template has an entry without name or template")
    return sources
