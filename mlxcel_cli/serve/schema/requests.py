"""Request bodies as typed models: their fields, in OpenAI's, vLLM's and llama.cpp's words."""

from typing import Any

import msgspec

ALIASES = {
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_context_size",
    "thinking_budget_tokens": "thinking_budget",
}
"""Other spellings of fields."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a stream carries beside the answer."""

    include_usage: bool | None = None
    """One more chunk with the token counts, before ``[DONE]``."""
    continuous_usage_stats: bool | None = None
    """Token counts so far in every chunk."""
    include_obfuscation: bool | None = None
    """Inert: nothing is obfuscated here."""


class GenerationRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What both endpoints take: length, stops, sampling, streaming."""

    model: str = "default"
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    max_tokens: int | None = None
    """-1: until the model ends or the context is full."""
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    seed: int | None = None
    """-1: one is drawn, and reported."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    min_keep: int | None = None
    repetition_penalty: float | None = None
    repetition_context_size: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    timings_per_token: bool = False
    """``timings`` so far in every event of a stream."""
    return_progress: bool = False
    """Events that tell how much of the prompt was read."""
    logit_bias: dict[str, float] | list[list[int | float | str | bool]] | None = None
    """Token id, as a string, to what is added to its logit; or, in llama.cpp's way, pairs of a
    token id or a text and that number, or false: never."""
    loop_min_pattern: int | None = None
    loop_max_pattern: int | None = None
    """Longest pattern whose repetition ends the answer; 0 is off."""
    loop_min_count: int | None = None
    speculative: bool = True
    """False: nothing is drafted for this answer where the server drafts; true changes nothing."""
    cache_prompt: bool = True
    """False: the prompt cache is neither looked into nor added to."""
    prompt_cache_key: str | None = None
    """Only requests of the same key share what the prompt cache holds."""
    user: str | None = None
    """Stands for the key where none is given."""


class ChatRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """Go on inside the last message, which is the assistant's, instead of beginning a turn."""
    chat_template_kwargs: dict[str, Any] | None = None
    """More variables for the chat template: ``enable_thinking`` for example."""
    reasoning_effort: str | None = None
    """Given to the chat template, which may know it."""
    thinking_budget: int | None = None
    """Most tokens of a reasoning model's thoughts; -1: no bound."""


class CompletionRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    """A text, several, token ids, or several lists of them."""
    logprobs: int | None = None
    echo: bool = False
