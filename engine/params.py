"""What a request asks for: frozen values, checked once when they are made."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from engine.errors import InvalidParams

SEED_LIMIT = 2**53
"""Seeds stay below this, so that JSON numbers and JavaScript clients keep them exact."""

DRY_BREAKERS = ("\n", ":", '"', "*")
"""llama.cpp's default sequence breakers."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; the defaults are greedy with every filter off.

    The order of the stages is llama.cpp's: bias, penalties, DRY, top-n-sigma, top-k,
    typical-p, top-p, min-p, XTC, temperature, draw.
    """

    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off; above the vocabulary is off too."""
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    """0 or negative is off."""
    min_keep: int = 0
    """Tokens that typical-p, top-p, min-p must leave."""
    repetition_penalty: float = 1.0
    repetition_context_size: int = 64
    """Newest tokens that the three penalties look at; 0 is off, -1 the whole context."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    """0 is off, -1 the whole context."""
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    """Above 0.5 XTC is inert."""
    mirostat: int = 0
    """0 off, 1 or 2 the version."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    seed: int | None = None
    """None: the engine draws one from the operating system and reports it."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id to the value added to its logit."""
    logprobs: int | None = None
    """None: none; n: the chosen token's and the n most likely ones', before the chain."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        for rule in _RULES:
            value = getattr(self, rule.name)
            if not rule.low <= value <= rule.high:
                most = f", at most {rule.high:g}" if value > rule.high >= _INT_LIMIT else ""
                raise InvalidParams(rule.name, f"must be {rule.text}{most}, got {value}")
        if not 0 < self.typical_p <= 1:
            raise InvalidParams("typical_p", f"must be above 0 and at most 1, got {self.typical_p}")
        if self.repetition_penalty <= 0:
            raise InvalidParams(
                "repetition_penalty", f"must be above 0, got {self.repetition_penalty}"
            )
        if self.seed is not None and not 0 <= self.seed < SEED_LIMIT:
            raise InvalidParams("seed", f"must be from 0 to 2^53 - 1, got {self.seed}")
        if self.logprobs is not None and self.logprobs < 0:
            raise InvalidParams("logprobs", f"must be 0 or more, got {self.logprobs}")
        for token, bias in self.logit_bias.items():
            if token < 0:
                raise InvalidParams("logit_bias", f"token id {token} is negative")
            if math.isnan(bias):
                raise InvalidParams("logit_bias", f"the bias of token {token} is not a number")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken without a draw."""
        return self.mirostat == 0 and (self.temperature == 0 or self.top_k == 1)

    @property
    def has_penalties(self) -> bool:
        """Whether repetition, frequency or presence penalties change anything."""
        return self.repetition_context_size != 0 and (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )

    @property
    def has_dry(self) -> bool:
        """Whether DRY changes anything."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def is_extended(self) -> bool:
        """Whether mirostat, dynamic temperature or min-keep is used."""
        return self.mirostat != 0 or self.dynatemp_range > 0 or self.min_keep > 0

    @property
    def has_feedback(self) -> bool:
        """Whether a draw changes the next one's parameters (mirostat)."""
        return self.mirostat != 0


@dataclass(frozen=True, slots=True)
class _Range:
    name: str
    low: float
    high: float
    text: str


# What the arrays of a draw hold; the comparison also refuses what is not a number.
_INT_LIMIT = 2**31 - 1
_FLOAT_LIMIT = 3e38

_RULES = (
    _Range("temperature", 0, _FLOAT_LIMIT, "0 or more"),
    _Range("top_k", 0, _INT_LIMIT, "0 (off) or more"),
    _Range("top_p", 0, 1, "from 0 to 1"),
    _Range("min_p", 0, 1, "from 0 to 1"),
    _Range("top_n_sigma", -1, _FLOAT_LIMIT, "-1 (off) or more"),
    _Range("min_keep", 0, _INT_LIMIT, "0 or more"),
    _Range("repetition_context_size", -1, _INT_LIMIT, "-1 (whole context), 0 (off) or more"),
    _Range("frequency_penalty", -_FLOAT_LIMIT, _FLOAT_LIMIT, "a finite number"),
    _Range("presence_penalty", -_FLOAT_LIMIT, _FLOAT_LIMIT, "a finite number"),
    _Range("repetition_penalty", 0, _FLOAT_LIMIT, "above 0"),
    _Range("dry_multiplier", 0, _FLOAT_LIMIT, "0 (off) or more"),
    _Range("dry_base", 1, _FLOAT_LIMIT, "1 or more"),
    _Range("dry_allowed_length", 0, _INT_LIMIT, "0 or more"),
    _Range("dry_penalty_last_n", -1, _INT_LIMIT, "-1 (whole context), 0 (off) or more"),
    _Range("xtc_probability", 0, 1, "from 0 to 1"),
    _Range("xtc_threshold", 0, 1, "from 0 to 1"),
    _Range("mirostat", 0, 2, "0 (off), 1 or 2"),
    _Range("mirostat_tau", 0, _FLOAT_LIMIT, "0 or more"),
    _Range("mirostat_eta", 0, _FLOAT_LIMIT, "0 or more"),
    _Range("dynatemp_range", 0, _FLOAT_LIMIT, "0 (off) or more"),
    _Range("dynatemp_exponent", 0, _FLOAT_LIMIT, "0 or more"),
)


class LookupPolicy(StrEnum):
    """How a prompt-lookup draft budget follows what was accepted."""

    AUTO = "auto"
    GRADED = "graded"
    GATED = "gated"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Prompt lookup's settings."""

    ngram_max: int = 3
    ngram_min: int = 2
    max_draft: int = 7
    policy: LookupPolicy = LookupPolicy.AUTO

    def __post_init__(self) -> None:
        if self.ngram_min < 1:
            raise InvalidParams("ngram_min", f"must be 1 or more, got {self.ngram_min}")
        if not self.ngram_min <= self.ngram_max <= 16:
            raise InvalidParams(
                "ngram_max",
                f"must be from ngram_min ({self.ngram_min}) to 16, got {self.ngram_max}",
            )
        if not 1 <= self.max_draft <= 64:
            raise InvalidParams("max_draft", f"must be from 1 to 64, got {self.max_draft}")


@dataclass(frozen=True, slots=True)
class LoopRule:
    """When a tail that repeats itself ends the answer; ``max_pattern`` 0 is off."""

    min_pattern: int = 1
    max_pattern: int = 0
    min_count: int = 12

    def __post_init__(self) -> None:
        if self.max_pattern < 0:
            raise InvalidParams("loop_max_pattern", "must be 0 (off) or more")
        if self.min_pattern < 0:
            raise InvalidParams("loop_min_pattern", f"must be 0 or more, got {self.min_pattern}")
        if self.max_pattern and self.min_count < 2:
            raise InvalidParams("loop_min_count", f"must be 2 or more, got {self.min_count}")


@dataclass(frozen=True, slots=True)
class SequenceParams:
    """One request: the prompt and everything that shapes its answer.

    Token ids are checked against the model's logits width by ``Engine.open``, before any
    forward: an id out of range is memory-unsafe on MLX's CPU backend.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """Most tokens to write; None: until an end token or the context is full. 0 writes none."""
    min_tokens: int = 0
    """No end token is drawn before this many are written."""
    context_tokens: int | None = None
    """Bound on prompt + answer; None: the model's own."""
    stop_ids: frozenset[int] = frozenset()
    """More end tokens, beside the model's."""
    ignore_eos: bool = False
    loop: LoopRule = LoopRule()
    choice: int = 0
    """Index of this answer among ``n``: the purpose of its draws."""
    speculation: SpeculationParams | None = None
    """Prompt lookup's settings, None: off."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", tuple(self.prompt_ids))
        if not self.prompt_ids:
            raise InvalidParams("prompt", "is empty: there is nothing to answer")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidParams("max_tokens", f"must be 0 or more, got {self.max_tokens}")
        if self.min_tokens < 0:
            raise InvalidParams("min_tokens", f"must be 0 or more, got {self.min_tokens}")
        if self.context_tokens is not None and self.context_tokens < 1:
            raise InvalidParams("context_tokens", f"must be 1 or more, got {self.context_tokens}")


def seeded(params: SequenceParams) -> SequenceParams:
    """``params`` with a seed: its own, or one from the operating system to be reported."""
    if params.sampling.seed is not None:
        return params
    sampling = replace(params.sampling, seed=secrets.randbelow(SEED_LIMIT))
    return replace(params, sampling=sampling)
