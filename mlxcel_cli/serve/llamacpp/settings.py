"""Generation settings under llama.cpp's names: what ran, for ``/completion``, and the defaults."""

from typing import Any

from engine.params import SAMPLING_FIELDS, SamplingParams
from engine.scheduler.request import ScheduledRequest
from mlxcel_cli.serve.choices import finite
from mlxcel_cli.serve.llamacpp.schema import SAMPLERS, NativeOptions

CONTENT_ONLY = "Content-only"
"""This endpoint finds neither tool calls nor reasoning in a text."""


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
        # Where a field has another name, that is llama.cpp's.
        **{(*one.aliases, one.name)[0]: getattr(sampling, one.name) for one in SAMPLING_FIELDS},
        "seed": -1 if sampling.seed is None else sampling.seed,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
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
