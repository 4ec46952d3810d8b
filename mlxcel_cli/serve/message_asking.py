"""Turns a Messages request into a conversation and rows: system text, turns, thinking."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InvalidParams
from mlxcel_cli.serve.schema.anthropic import (
    Content,
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    Thinking,
)
from mlxcel_cli.serve.schema.requests import ChatRequest
from mlxcel_cli.serve.served_model import ServedModel

MIN_THINKING_TOKENS = 1024
THOUGHTS = frozenset({"thinking", "redacted_thinking"})
"""Blocks of earlier answers that are not said again: the model is not to read its thoughts."""


def chat_of(request: CountTokensRequest, model: ServedModel) -> ChatRequest:
    """The same request in the words of the chat endpoint.

    A last message of the assistant's is gone on with, as Anthropic does.

    Raises:
        InvalidParams: a block is no text, or thinking is asked of a model that does not reason.
    """
    turns = _turns(request.messages)
    system = _text(request.system, "system", joint="\n\n")
    if system:
        turns.insert(0, {"role": "system", "content": system})
    more: dict[str, Any] = {}
    if isinstance(request, MessagesRequest):
        more = _generation(request)
    return ChatRequest(
        model=request.model,
        messages=turns,
        continue_final_message=bool(turns) and turns[-1]["role"] == "assistant",
        chat_template_kwargs=_thinking(request, model),
        **more,
    )


def _generation(request: MessagesRequest) -> dict[str, Any]:
    if request.max_tokens < 1:
        raise InvalidParams("max_tokens", f"must be 1 or more, got {request.max_tokens}")
    return {
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences,
        "stream": request.stream,
        "temperature": request.temperature,
        "thinking_budget": None if request.thinking is None else request.thinking.budget_tokens,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "user": request.metadata.user_id,
    }


def _thinking(request: CountTokensRequest, model: ServedModel) -> dict[str, bool] | None:
    """The template's variable for it; None for a model that does not reason."""
    asked = request.thinking or Thinking("disabled")
    _check_budget(asked, request)
    if model.template is None or not model.template.thinking_marks:
        if asked.type == "enabled":
            raise InvalidParams("thinking", f"{model.facts.name} does not reason: leave it out")
        return None
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
