"""An answer's timings in llama.cpp's shape, for ``generate --json`` and the server."""

from typing import Any

from engine.outcome import Timings


def timings_json(timings: Timings) -> dict[str, Any]:
    """Counts, milliseconds and rates; counts of drafts where a verify round ran.

    ``predicted_ms`` counts from the first token, so its rate leaves that token out.
    """
    gaps = timings.predicted_n - 1
    values: dict[str, Any] = {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": milliseconds(timings.prompt_s),
        "prompt_per_token_ms": _per_token_ms(timings.prompt_s, timings.prompt_n),
        "prompt_per_second": round(timings.prompt_per_second, 3),
        "predicted_n": timings.predicted_n,
        "predicted_ms": milliseconds(timings.predicted_s),
        "predicted_per_token_ms": _per_token_ms(timings.predicted_s, gaps),
        "predicted_per_second": round(timings.predicted_per_second, 3),
    }
    if timings.draft_rounds:
        values |= {
            "draft_n": timings.draft_n,
            "draft_n_accepted": timings.draft_n_accepted,
            "draft_rounds": timings.draft_rounds,
            "draft_kind": timings.draft_kind,
        }
    return values


def milliseconds(seconds: float) -> float:
    """Rounded to microseconds."""
    return round(seconds * 1000, 3)


def _per_token_ms(seconds: float, tokens: int) -> float:
    return milliseconds(seconds / tokens) if tokens > 0 else 0.0
