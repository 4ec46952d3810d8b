"""A prompt in any form that a script gives: a string, chat messages or token ids."""

from collections.abc import Sequence
from numbers import Integral

from engine.errors import InvalidParams
from engine.text.messages import Message, check_messages
from engine.text.rendered import RenderedPrompt
from engine.text.template import ChatTemplate, render_messages

Prompt = str | Sequence[Message] | Sequence[int]
"""A user's turn (or, if raw, the model's input), chat messages in OpenAI's shape, or token ids."""


def read_prompt(
    prompt: Prompt, template: ChatTemplate | None, *, raw: bool = False, system: str | None = None
) -> RenderedPrompt | tuple[int, ...]:
    """The prompt as the model reads it, or its token ids if that is what was given.

    Args:
        prompt: in any of its forms.
        template: the model's; None: it has none.
        raw: whether a string is the model's input as it is.
        system: a system message before a string or messages.

    Raises:
        InvalidParams: it has none of the forms, is empty, or does not go with ``raw`` or
            ``system``.
        TemplateError: the template refused the messages.
    """
    given: object = prompt
    if isinstance(given, bytes) or not isinstance(given, str | Sequence):
        kind = type(given).__name__
        raise InvalidParams("prompt", f"must be a string, chat messages or token ids, got {kind}")
    if not given or (isinstance(given, str) and not raw and not given.strip()):
        raise InvalidParams("prompt", "is empty: there is nothing to answer")
    are_ids = not isinstance(given, str) and all(isinstance(one, Integral) for one in given)
    if system is not None and (raw or are_ids):
        raise InvalidParams("system", "needs the chat template: not with raw or token ids")
    if are_ids:
        return tuple(map(int, given))
    if raw and not isinstance(given, str):
        raise InvalidParams("raw", "is about a string: messages go through the chat template")
    if isinstance(given, str) and raw:
        return RenderedPrompt(given, is_raw=True)
    asked = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = check_messages(asked)
    if system is not None:
        if messages[0]["role"] == "system":
            raise InvalidParams("system", "the messages have a system message")
        messages = [{"role": "system", "content": system}, *messages]
    return render_messages(template, messages)
