"""What a request asks for: frozen values, checked once when they are made."""

import math
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from engine.errors import InvalidParams

SEED_LIMIT = 2**53
"""Seeds stay below this, so that JSON numbers and JavaScript clients keep them exact."""

DRY_BREAKERS = ("\n", ":", '"', "*")
"""llama.cpp's default sequence breakers."""


SAMPLING, PENALTIES, RARE_SAMPLERS = "Sampling", "Penalties", "Samplers for special cases"
SAMPLING_GROUPS = (SAMPLING, PENALTIES, RARE_SAMPLERS)
"""Topics of the fields, in the order in which help pages show them."""

# What the arrays of a draw hold; the comparison also refuses what is not a number.
_INT_LIMIT = 2**31 - 1
_FLOAT_LIMIT = 3e38


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingField:
    """One field of `SamplingParams` as its users meet it: names, range, help."""

    name: str
    type: type
    """Of a value on the command line and in JSON: int, float, or list (of strings)."""
    default: Any
    help: str
    """A sentence for help pages."""
    metavar: str
    group: str
    """One of `SAMPLING_GROUPS`."""
    option: str
    """Its name on the command line."""
    spellings: tuple[str, ...] = ()
    """Other names on the command line; only short ones are advertised."""
    aliases: tuple[str, ...] = ()
    """Other names in JSON."""
    low: float | None = None
    """Least value, None where a value is no number."""
    high: float = 0
    is_open: bool = False
    """Whether ``low`` itself is refused."""
    allowed: str = ""
    """What the range is called in errors."""

    def check(self, value: float) -> None:
        """Refuse what is out of range.

        Raises:
            InvalidParams: names the field and its range.
        """
        low = self.low
        assert low is not None
        if (low < value if self.is_open else low <= value) and value <= self.high:
            return
        is_huge = value > self.high and self.high in (_INT_LIMIT, _FLOAT_LIMIT)
        most = f", at most {self.high:g}" if is_huge else ""
        raise InvalidParams(self.name, f"must be {self.allowed}{most}, got {value}")


def _sampling_field(
    default: object,
    group: str,
    help_text: str,
    metavar: str,
    **more: object,
) -> Any:
    """A field of `SamplingParams` with what `SamplingField` says of it; `{}` is the default."""
    return field(
        default=default, metadata={"group": group, "help": help_text, "metavar": metavar, **more}
    )


def _number(default: float | None, group: str, help_text: str, metavar: str, **more: object) -> Any:
    """A number, by default 0 or more."""
    limit = _FLOAT_LIMIT if isinstance(default, float) else _INT_LIMIT
    more = {"low": 0, "high": limit, "allowed": "0 or more", **more}
    return _sampling_field(default, group, help_text, metavar, **more)


def _share(default: float, group: str, help_text: str, **more: object) -> Any:
    """A probability."""
    more = {"low": 0, "high": 1, "allowed": "from 0 to 1", **more}
    return _sampling_field(default, group, help_text, "P", **more)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; the defaults are greedy with every filter off.

    The order of the stages is llama.cpp's: bias, penalties, DRY, top-n-sigma, top-k,
    typical-p, top-p, min-p, XTC, temperature, draw.

    Command-line options, HTTP fields, keys of the options file, ranges and help texts come from
    these declarations, through `SAMPLING_FIELDS`.
    """

    temperature: float = _number(
        0.0, SAMPLING,
        "Randomness: higher is more varied; {} always takes the most likely token.",
        "T", spellings=("-t", "--temp"),
    )  # fmt: skip
    top_k: int = _number(
        0, SAMPLING, "Sample from the N most likely tokens; {} is off.",
        "N", low=-1, allowed="0 or -1 (off) or more",
    )  # fmt: skip
    top_p: float = _share(
        1.0, SAMPLING,
        "Sample from the most likely tokens whose probabilities together reach P; {} is off.",
    )  # fmt: skip
    min_p: float = _share(
        0.0, SAMPLING, "Drop tokens less likely than P times the most likely one; {} is off."
    )
    typical_p: float = _share(
        1.0, RARE_SAMPLERS,
        "Locally typical sampling: keep the tokens nearest to the expected surprise that "
        "together reach P; {} is off.",
        is_open=True, allowed="above 0 and at most 1", spellings=("--typical",),
    )  # fmt: skip
    top_n_sigma: float = _number(
        0.0, RARE_SAMPLERS,
        "Drop tokens more than X standard deviations below the best; {} is off.",
        "X", low=-1, allowed="-1 (off) or more",
    )  # fmt: skip
    min_keep: int = _number(
        0, RARE_SAMPLERS, "Tokens that top-p, min-p and typical-p must keep. Default: {}.", "N"
    )
    repetition_penalty: float = _number(
        1.0, PENALTIES, "Make repeated tokens less likely; {} is off.",
        "X", is_open=True, allowed="above 0",
        spellings=("--repeat-penalty",), aliases=("repeat_penalty",),
    )  # fmt: skip
    repetition_context_size: int = _number(
        64, PENALTIES,
        "Newest tokens that the three penalties look at; 0 is off, -1 the whole context. "
        "Default: {}.",
        "N", low=-1, allowed="-1 (whole context), 0 (off) or more",
        spellings=("--repeat-last-n",), aliases=("repeat_last_n",),
    )  # fmt: skip
    frequency_penalty: float = _number(
        0.0, PENALTIES,
        "Subtract X from a token's logit for each time it occurred; {} is off.",
        "X", low=-_FLOAT_LIMIT, allowed="a finite number",
    )  # fmt: skip
    presence_penalty: float = _number(
        0.0, PENALTIES, "Subtract X once from the logit of a token that occurred; {} is off.",
        "X", low=-_FLOAT_LIMIT, allowed="a finite number",
    )  # fmt: skip
    dry_multiplier: float = _number(
        0.0, PENALTIES,
        "DRY: penalise tokens that would lengthen a repeated sequence; {} is off.",
        "X", allowed="0 (off) or more",
    )  # fmt: skip
    dry_base: float = _number(
        1.75, PENALTIES, "DRY: growth of the penalty with the sequence's length. Default: {}.",
        "X", low=1, allowed="1 or more",
    )  # fmt: skip
    dry_allowed_length: int = _number(
        2, PENALTIES, "DRY: shorter sequences may repeat. Default: {}.", "N"
    )
    dry_penalty_last_n: int = _number(
        64, PENALTIES,
        "DRY: newest tokens it looks at; 0 is off, -1 the whole context. Default: {}.",
        "N", low=-1, allowed="-1 (whole context), 0 (off) or more",
    )  # fmt: skip
    dry_sequence_breakers: tuple[str, ...] = _sampling_field(
        DRY_BREAKERS, PENALTIES,
        'DRY: sequences end at this string; may be given several times, "none" is no breaker. '
        "Default: newline, colon, double quote and asterisk.",
        "TEXT", option="--dry-sequence-breaker",
    )  # fmt: skip
    xtc_probability: float = _share(
        0.0, RARE_SAMPLERS,
        "XTC: how often all top choices but the least likely one are dropped; {} is off.",
    )  # fmt: skip
    xtc_threshold: float = _share(
        0.1, RARE_SAMPLERS,
        "XTC: probability from which a token is a top choice; above 0.5 XTC does nothing. "
        "Default: {}.",
    )  # fmt: skip
    mirostat: int = _number(
        0, RARE_SAMPLERS,
        "Mirostat 1 or 2: keep the perplexity of the text near a target; {} is off.",
        "0|1|2", high=2, allowed="0 (off), 1 or 2",
    )  # fmt: skip
    mirostat_tau: float = _number(
        5.0, RARE_SAMPLERS, "Mirostat: target entropy. Default: {}.",
        "X", spellings=("--mirostat-ent",),
    )  # fmt: skip
    mirostat_eta: float = _number(
        0.1, RARE_SAMPLERS, "Mirostat: learning rate. Default: {}.",
        "X", spellings=("--mirostat-lr",),
    )  # fmt: skip
    dynatemp_range: float = _number(
        0.0, RARE_SAMPLERS,
        "Dynamic temperature: how far it moves up and down with the entropy of the choices; "
        "{} is off.",
        "X", allowed="0 (off) or more",
    )  # fmt: skip
    dynatemp_exponent: float = _number(
        1.0, RARE_SAMPLERS, "Dynamic temperature: exponent of the entropy. Default: {}.",
        "X", spellings=("--dynatemp-exp",),
    )  # fmt: skip
    seed: int | None = _number(
        None, SAMPLING,
        "The same seed gives the same answer; -1 draws one. --stats and --json show it.",
        "N", high=SEED_LIMIT - 1, allowed="from 0 to 2^53 - 1",
    )  # fmt: skip
    """None: the engine draws one from the operating system and reports it."""
    logit_bias: Mapping[int, float] = field(
        default_factory=dict,
        metadata={
            "group": SAMPLING, "metavar": "TOKEN=VALUE",
            "help": "Add VALUE to a token's logit; TOKEN is an id or a string in quotes "
            '("yes"=5), VALUE may be -inf. May be given several times.',
        },
    )  # fmt: skip
    """Token id to the value added to its logit."""
    logprobs: int | None = None
    """None: none; n: the chosen token's and the n most likely ones', before the chain."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        for one in SAMPLING_FIELDS:
            value = getattr(self, one.name)
            if one.low is not None and value is not None:
                one.check(value)
        object.__setattr__(self, "top_k", max(0, self.top_k))
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


def _described(declared: Field[Any]) -> SamplingField:
    numbers: dict[object, type] = {int: int, float: float, int | None: int}
    values: dict[str, Any] = {"option": "--" + declared.name.replace("_", "-"), **declared.metadata}
    has_number = isinstance(declared.default, int | float)
    help_text: str = values.pop("help")
    return SamplingField(
        name=declared.name,
        type=numbers.get(declared.type, list),
        default=declared.default,
        help=help_text.format(f"{declared.default:g}") if has_number else help_text,
        **values,
    )


SAMPLING_FIELDS = tuple(_described(one) for one in fields(SamplingParams) if one.metadata)
"""The fields that users set; how ``logit_bias`` is spelt depends on where it stands."""


MAX_NGRAM_TOKENS = 16
MAX_DRAFT_TOKENS = 64


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
        if not self.ngram_min <= self.ngram_max <= MAX_NGRAM_TOKENS:
            raise InvalidParams(
                "ngram_max",
                f"must be from ngram_min ({self.ngram_min}) to {MAX_NGRAM_TOKENS}, "
                f"got {self.ngram_max}",
            )
        if not 1 <= self.max_draft <= MAX_DRAFT_TOKENS:
            raise InvalidParams(
                "max_draft", f"must be from 1 to {MAX_DRAFT_TOKENS}, got {self.max_draft}"
            )


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
    """Most tokens to generate, 0 none; None: until an end token or the context is full."""
    min_tokens: int = 0
    """No end token is sampled before this many are generated."""
    context_tokens: int | None = None
    """Bound on prompt + answer; None: the model's own."""
    stop_ids: frozenset[int] = frozenset()
    """End tokens in addition to the model's."""
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
    # As `secrets` draws, which costs each start an import of hashlib.
    sampling = replace(params.sampling, seed=int.from_bytes(os.urandom(7)) % SEED_LIMIT)
    return replace(params, sampling=sampling)
