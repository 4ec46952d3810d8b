"""Generation settings in llama.cpp's words: what ran, for ``/completion``, and the defaults."""

from typing import Any

from engine.params import SamplingParams
from engine.scheduler.request import ScheduledRequest
from mlxcel_cli.serve.choices import finite
from mlxcel_cli.serve.schema.native import SAMPLERS, NativeOptions

CONTENT_ONLY = "Content-only"
"""This endpoint finds neither tool calls nor thoughts in a text."""


def generation_settings(row: ScheduledRequest, body: NativeOptions) -> dict[str, Any]:
    """The settings of one answer, defaults filled in."""
    params = row.params
    bound = -1 if params.max_tokens is None else params.max_tokens
    return {
        **sampling_settings(params.sampling),
        "n_predict": bound,
        "max_tokens": bound,
        "min_tokens": params.min_tokens,
        "stop": list(row.stops),
        "ignore_eos": params.ignore_eos,
        "stream": body.stream,
        "n_probs": body.n_probs,
        "return_tokens": body.return_tokens,
        "n_indent": body.n_indent,
        "t_max_predict_ms": body.t_max_predict_ms,
        "return_progress": body.return_progress,
        "timings_per_token": body.timings_per_token,
        "cache_prompt": row.cache is not None,
    }


def sampling_settings(sampling: SamplingParams) -> dict[str, Any]:
    """The sampler's settings."""
    return {
        "seed": -1 if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": sampling.dynatemp_range,
        "dynatemp_exponent": sampling.dynatemp_exponent,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repetition_context_size,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "mirostat": sampling.mirostat,
        "mirostat_tau": sampling.mirostat_tau,
        "mirostat_eta": sampling.mirostat_eta,
        "min_keep": sampling.min_keep,
        "logit_bias": [
            {"token": token, "bias": finite(bias)} for token, bias in sampling.logit_bias.items()
        ],
        "samplers": list(SAMPLERS),
        "n_keep": 0,
        "n_discard": 0,
        "post_sampling_probs": False,
        "grammar": "",
        "lora": [],
        "chat_format": CONTENT_ONLY,
    }
