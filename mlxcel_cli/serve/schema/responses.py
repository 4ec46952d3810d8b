"""Response bodies as typed models, in OpenAI's shapes."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where prompt tokens came from."""

    cached_tokens: int = 0


class UsageBody(msgspec.Struct, frozen=True):
    """Token counts of a response; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


UsageField = UsageBody | UnsetType | None
"""``usage`` of a chunk: the counts, null where they come later, or absent."""


class TimingsBody(msgspec.Struct, frozen=True):
    """llama.cpp's ``timings``, of the first choice."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET
    """Tokens that verify rounds were given; these four are there once a round ran."""
    draft_n_accepted: int | UnsetType = UNSET
    draft_rounds: int | UnsetType = UNSET
    draft_kind: Literal["prompt-lookup"] | UnsetType = UNSET


class PromptProgress(msgspec.Struct, frozen=True):
    """How much of a prompt was read."""

    total: int
    cache: int
    processed: int
    time_ms: float


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(msgspec.Struct, frozen=True):
    """A token of the answer with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """The chat endpoint's log-probabilities."""

    content: list[TokenLogprobBody]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer of a chat."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    """What a reasoning model thought before."""
    reasoning: str | UnsetType = UNSET
    """The same, under the name that other clients look for."""


FinishReason = Literal["stop", "length"]


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat completion."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The response of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    timings: TimingsBody
    seed: int
    """What replays the answer, drawn by the server when the request had none."""


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageField = UNSET
    timings: TimingsBody | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    seed: int | UnsetType = UNSET


class LegacyLogprobs(msgspec.Struct, frozen=True):
    """The legacy endpoint's log-probabilities: lists of equal length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One text of a completion, or its part of an event."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: FinishReason | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The response of ``/v1/completions``, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageField = UNSET
    timings: TimingsBody | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    seed: int | UnsetType = UNSET


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorDetail


class ModelMeta(msgspec.Struct, frozen=True):
    """Facts of a model."""

    family: str
    context_tokens: int
    train_context_tokens: int
    vocab_size: int
    dtype: str
    quantization: str | None
    weight_bytes: int


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "llamacpp"
    """What clients of llama.cpp's server look for."""
    aliases: list[str]
    tags: list[str]
    capabilities: list[str]
    meta: ModelMeta


class ModelList(msgspec.Struct, frozen=True):
    """What ``/v1/models`` lists."""

    data: list[ModelEntry]
    object: Literal["list"] = "list"


class HealthBody(msgspec.Struct, frozen=True):
    """The server can answer."""

    status: Literal["ok"] = "ok"
