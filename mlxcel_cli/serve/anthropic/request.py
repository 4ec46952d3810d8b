"""Turns a Messages request into a conversation and a generation spec."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InvalidParams
from engine.scheduler.queue import Priority
from mlxcel_cli.serve.anthropic.schema import (
    Content,
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    Thinking,
)
from mlxcel_cli.serve.generation import GenerationSpec
from mlxcel_cli.serve.generation_fields import sampling_of
from mlxcel_cli.serve.prompts import ChatPrompt
from mlxcel_cli.serve.served_model import ServedModel

MIN_THINKING_TOKENS = 1024
BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""Claude Code's first line of the system text: it changes with each request, says nothing to the
model, and behind it no prompt cache finds anything."""
THOUGHTS = frozenset({"thinking", "redacted_thinking"})
"""Blocks of earlier answers that are left out: the model is not to read its own reasoning."""


def chat_of(body: CountTokensRequest, model: ServedModel) -> ChatPrompt:
    """The conversation of a request.

    A last message of the assistant's is continued, as by Anthropic.

    Raises:
        InvalidParams: a block is no text, or thinking is asked of a model that does not reason.
    """
    turns = _turns(body.messages)
    system = BILLING_LINE.sub("", _text(body.system, "system", joint="\n\n"))
    if system:
        turns.insert(0, {"role": "system", "content": system})
    return ChatPrompt(
        messages=turns,
        continue_final=bool(turns) and turns[-1]["role"] == "assistant",
        variables=_thinking(body, model),
    )


def messages_spec(body: MessagesRequest, priority: Priority) -> GenerationSpec:
    """What a request asks for.

    Raises:
        InvalidParams: ``max_tokens`` is below 1.
    """
    if body.max_tokens < 1:
        raise InvalidParams("max_tokens", f"must be 1 or more, got {body.max_tokens}")
    return GenerationSpec(
        sampling=sampling_of(body),
        max_tokens=body.max_tokens,
        stops=tuple(body.stop_sequences),
        priority=priority,
        cache_key=body.metadata.user_id or "",
        has_reasoning=True,
        thinking_budget=None if body.thinking is None else body.thinking.budget_tokens,
    )


def _thinking(request: CountTokensRequest, model: ServedModel) -> dict[str, bool]:
    """The template's variable for it; none for a model that does not reason."""
    asked = request.thinking or Thinking("disabled")
    _check_budget(asked, request)
    if not model.thinking_marks:
        if asked.type == "enabled":
            raise InvalidParams("thinking", f"{model.facts.name} does not reason: leave it out")
        return {}
    return {"enable_thinking": asked.type != "disabled"}


def _check_budget(asked: Thinking, request: CountTokensRequest) -> None:
    budget = asked.budget_tokens
    if asked.type != "enabled":
        if budget is not None:
            raise InvalidParams("thinking.budget_tokens", "goes with type enabled only")
        return
    if budget is None or budget < MIN_THINKING_TOKENS:
        raise InvalidParams("thinking.budget_tokens", f"must be {MIN_THINKING_TOKENS} or more")
    if isinstance(request, MessagesRequest) and budget >= request.max_tokens:
        raise InvalidParams("thinking.budget_tokens", "must be less than max_tokens")


def _turns(messages: Sequence[InputMessage]) -> list[dict[str, Any]]:
    """Turns with their texts; neighbours of one role are one turn."""
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        text = _text(message.content, f"messages[{index}].content", joint="\n")
        if turns and turns[-1]["role"] == message.role:
            turns[-1]["content"] += f"\n\n{text}"
        else:
            turns.append({"role": message.role, "content": text})
    return turns


def _text(content: Content, place: str, *, joint: str) -> str:
    if isinstance(content, str):
        return content
    texts = [_block_text(block, f"{place}[{index}]") for index, block in enumerate(content)]
    return joint.join(text for text in texts if text is not None)


def _block_text(block: Mapping[str, Any], place: str) -> str | None:
    kind = block.get("type")
    if kind in THOUGHTS:
        return None
    if kind != "text":
        raise InvalidParams(
            f"{place}.type", f"must be 'text', got {kind!r}: only text can be read here"
        )
    text = block.get("text")
    if not isinstance(text, str):
        raise InvalidParams(f"{place}.text", "must be a string")
    return text
