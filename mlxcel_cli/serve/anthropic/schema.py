"""Bodies of Anthropic's Messages API."""

from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from mlxcel_cli.serve.api import Api
from mlxcel_cli.serve.bodies import FieldRules
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.generation_fields import with_sampling

_NO_TOOLS = "are not supported yet: leave them out, or ask for JSON in the prompt"

ANTHROPIC_FIELDS = FieldRules(
    aliases=MappingProxyType({}),
    inert=frozenset({"service_tier", "inference_geo", "cache_control"}),
    unsupported=MappingProxyType(
        {
            "tools": ([],),
            "tool_choice": ({"type": "none"}, {"type": "auto"}),
            "mcp_servers": ([],),
            "container": (),
            "context_management": (),
            "output_config": ({},),
            "output_format": (),
            "speed": ("standard",),
        }
    ),
    advice=MappingProxyType({"tools": _NO_TOOLS, "tool_choice": _NO_TOOLS}),
)
"""What ``/v1/messages`` tolerates."""

Content = str | list[dict[str, Any]]


class InputMessage(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A turn: a text, or blocks of it."""

    role: Literal["user", "assistant", "system"]
    content: Content


class Thinking(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Whether the model reasons before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    """Most tokens of reasoning."""
    display: Literal["summarized", "omitted"] | None = None


class MessagesMetadata(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """About the request."""

    user_id: str | None = None
    """Only requests of the same one share what the prompt cache holds."""


class CountTokensRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``POST /v1/messages/count_tokens``."""

    model: str
    messages: list[InputMessage]
    system: Content = ""
    thinking: Thinking | None = None


if TYPE_CHECKING:
    _Sampling = CountTokensRequest
else:
    _Sampling = with_sampling(CountTokensRequest, ("temperature", "top_k", "top_p"))


class MessagesRequest(_Sampling, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``POST /v1/messages``."""

    max_tokens: int
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    stream: bool = False
    metadata: MessagesMetadata = MessagesMetadata()


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "model_context_window_exceeded"]


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts; what the prompt cache had is not among the input tokens."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """A part of the answer."""

    text: str = ""


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """The model's reasoning; nobody signs it here."""

    thinking: str = ""
    signature: str = ""


Block = TextBlock | ThinkingBlock


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """The response of ``/v1/messages``."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(msgspec.Struct, frozen=True, tag="message_start"):
    """A stream's first event."""

    message: MessageBody


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Keeps a silent stream alive."""


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: Block


class TextBlockDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    """More of a text block."""

    text: str


class ThinkingBlockDelta(msgspec.Struct, frozen=True, tag="thinking_delta"):
    """More of a thinking block."""

    thinking: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: TextBlockDelta | ThinkingBlockDelta


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    """A block ends."""

    index: int


class StopDelta(msgspec.Struct, frozen=True):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta"):
    """The end of a message, with its counts."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    """A stream's last event."""


MessageEvent = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
)


class MessagesErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    type: str
    message: str


class MessagesErrorBody(msgspec.Struct, frozen=True, tag="error"):
    """The body of an error of ``/v1/messages``, and of the event that ends a stream badly."""

    error: MessagesErrorDetail
    request_id: str


_ERROR_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def _error_body(error: ApiError, request_id: str) -> MessagesErrorBody:
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(error.status, default)
    return MessagesErrorBody(MessagesErrorDetail(kind, error.message), request_id)


OVERLOADED = 529
"""Anthropic's status for a server that has to send clients away."""

ANTHROPIC = Api(
    error_type=MessagesErrorBody,
    error_body=_error_body,
    overloaded=OVERLOADED,
    request_id_header="request-id",
    errors=MappingProxyType({OVERLOADED: "Loading, full, or shutting down."}),
)
