"""Turns what a request asks for, in any API's fields, into rows for the scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from engine.errors import InvalidParams
from engine.params import SAMPLING_FIELDS, LoopRule, SamplingParams, SequenceParams, seeded
from engine.prompt_cache.key import CacheUse
from engine.rows import RowHooks
from engine.scheduler.queue import Priority
from engine.scheduler.request import ScheduledRequest
from engine.text.breakers import breaker_ids
from mlxcel_cli.engine_requests import token_bound
from mlxcel_cli.sampling_options import Bias, token_biases
from mlxcel_cli.serve.prompts import EncodedPrompt
from mlxcel_cli.serve.row_hooks import LineBounds, ThinkingBudget
from mlxcel_cli.serve.served_model import ServedModel

MAX_CHOICES = 8
"""Rows of one batch that one request may ask for."""
MAX_TEXTS = 64
"""Stop strings, or sequence breakers."""
MAX_TEXT_CHARACTERS = 16_384
"""Characters of all of them: each row prepares them between two steps of all rows."""
UNBOUNDED = -1

SERVER_SAMPLING = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""llama.cpp's server defaults, where neither request, options nor model say anything."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the server's options say for requests that leave it open."""

    sampling: Mapping[str, Any]
    """Fields of SamplingParams that options, environment or options file set."""
    biases: tuple[Bias, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """What a request asks for, whichever API it came by; None: the server decides."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of SamplingParams; None or absent: open. A seed of -1 is drawn."""
    logit_bias: tuple[Bias, ...] | None = None
    n: int = 1
    max_tokens: int | None = None
    """-1: until the model ends or the context is full."""
    min_tokens: int = 0
    stops: tuple[str, ...] = ()
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    loop: LoopRule = field(default=LoopRule())
    logprobs: int | None = None
    """Likely tokens at each place; None: no log-probabilities."""
    priority: Priority = Priority.NORMAL
    is_speculative: bool = True
    uses_cache: bool = True
    cache_key: str = ""
    """Only requests of the same key share what the prompt cache holds."""
    has_reasoning: bool = False
    """Whether the model's reasoning is found in its text."""
    thinking_budget: int | None = None
    """Most tokens of reasoning; None or -1: no bound."""
    least_indent: int = 0
    """Of every line but the first; 0: off."""
    most_line_ms: int = 0
    """Milliseconds after which an answer with a new line ends; 0 or less: off."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The rows of one HTTP request. Row i is choice i of the response."""

    rows: tuple[ScheduledRequest, ...]
    prompts: tuple[EncodedPrompt, ...]
    """One for each n rows."""
    seed: int

    def prompt_of(self, index: int) -> EncodedPrompt:
        """The prompt of choice ``index``."""
        return self.prompts[index * len(self.prompts) // len(self.rows)]

    def rows_of(self, owner: str) -> tuple[ScheduledRequest, ...]:
        """The rows, with a part of the prompt cache that is their owner's alone."""
        return tuple(
            replace(row, cache=replace(row.cache, owner=owner)) if row.cache else row
            for row in self.rows
        )


def plan_generation(
    spec: GenerationSpec,
    prompts: tuple[EncodedPrompt, ...],
    model: ServedModel,
    defaults: Defaults,
    id_: str,
) -> Generation:
    """The rows of a request.

    Args:
        spec: what it asks for.
        prompts: what is to be continued, each n times.
        model: that runs them.
        defaults: what the server's options say where the request is silent.
        id_: of the response; the rows' ids begin with it.

    Raises:
        InvalidParams: a value is out of its range; names the field.
    """
    if not 1 <= spec.n <= MAX_CHOICES:
        raise InvalidParams("n", f"must be from 1 to {MAX_CHOICES}, got {spec.n}")
    budget = spec.thinking_budget
    if budget is not None and budget < UNBOUNDED:
        raise InvalidParams("thinking_budget", f"must be -1 (no bound), 0 or more, got {budget}")
    _refuse_long("stop", spec.stops)
    params = seeded(
        SequenceParams(
            prompt_ids=prompts[0].ids,
            sampling=_sampling(spec, model, defaults),
            max_tokens=token_bound(
                defaults.max_tokens if spec.max_tokens is None else spec.max_tokens
            ),
            min_tokens=spec.min_tokens,
            stop_ids=frozenset(spec.stop_ids),
            ignore_eos=spec.ignore_eos,
            loop=spec.loop,
        )
    )
    marks = model.thinking_marks if spec.has_reasoning else ()
    rows: list[ScheduledRequest] = []
    for prompt in prompts:
        for choice in range(spec.n):
            row = ScheduledRequest(
                f"{id_}/{len(rows)}",
                replace(params, prompt_ids=prompt.ids, choice=choice),
                spec.stops,
                priority=spec.priority,
                keep_texts=tuple(text for mark in marks for text in (mark.open, mark.close)),
                continues_text=prompt.continues_text,
                cache=_cache_use(spec, prompt),
                is_speculative=spec.is_speculative,
            )
            rows.append(replace(row, hooks=_hooks(spec, row, prompt, model)))
    seed = params.sampling.seed
    assert seed is not None
    return Generation(tuple(rows), prompts, seed)


def default_sampling(model: ServedModel, defaults: Defaults) -> SamplingParams:
    """How a request that says nothing about it is sampled."""
    return _sampling(GenerationSpec(), model, defaults)


def priority_of(request: web.Request) -> Priority:
    """The priority that a request's ``X-Priority`` header asks for.

    Raises:
        InvalidParams: there is no such priority.
    """
    header = request.headers.get("X-Priority")
    if header is None:
        return Priority.NORMAL
    try:
        return Priority[header.strip().upper()]
    except KeyError:
        raise InvalidParams("X-Priority", f"must be high, normal or low, got {header!r}") from None


def _sampling(spec: GenerationSpec, model: ServedModel, defaults: Defaults) -> SamplingParams:
    """The request's values over the options' over the model's over the server's."""
    values: dict[str, Any] = {}
    for name in (one.name for one in SAMPLING_FIELDS if one.name != "logit_bias"):
        said = (
            spec.sampling.get(name),
            defaults.sampling.get(name),
            model.generation.get(name),
            getattr(SERVER_SAMPLING, name),
        )
        values[name] = next((value for value in said if value is not None), None)
    values["dry_sequence_breakers"] = tuple(values["dry_sequence_breakers"])
    _refuse_long("dry_sequence_breakers", values["dry_sequence_breakers"])
    if values["seed"] == UNBOUNDED:
        values["seed"] = None
    pairs = defaults.biases if spec.logit_bias is None else spec.logit_bias
    biases = token_biases(pairs, model.tokenizer.encode)
    params = SamplingParams(**values, logit_bias=biases, logprobs=spec.logprobs)
    if params.has_dry:  # the engine thread then finds them looked up
        breaker_ids(model.tokenizer, params.dry_sequence_breakers)
    return params


def _refuse_long(name: str, texts: Sequence[str]) -> None:
    if len(texts) > MAX_TEXTS:
        raise InvalidParams(name, f"holds {len(texts)} texts; at most {MAX_TEXTS} may")
    if sum(map(len, texts)) > MAX_TEXT_CHARACTERS:
        raise InvalidParams(name, f"is too long: at most {MAX_TEXT_CHARACTERS} characters in all")


def _cache_use(spec: GenerationSpec, prompt: EncodedPrompt) -> CacheUse | None:
    if not spec.uses_cache:
        return None
    return CacheUse(
        session=spec.cache_key, template=prompt.template, history_tokens=prompt.history_tokens
    )


def _hooks(
    spec: GenerationSpec, row: ScheduledRequest, prompt: EncodedPrompt, model: ServedModel
) -> RowHooks | None:
    """What a feature decides for a row while it runs."""
    marks = model.thinking_marks if spec.has_reasoning else ()
    context = prompt.ids if prompt.continues_text else ()
    if marks and spec.thinking_budget not in (None, UNBOUNDED):
        assert spec.thinking_budget is not None
        return ThinkingBudget(
            model.tokenizer.decoder(keep_texts=row.keep_texts, context=context),
            prompt.answer_text(marks),
            model.tokenizer.encode(marks[0].close, parse_special=True),
            prompt_tokens=len(prompt.ids),
            tokens=spec.thinking_budget,
            vocab_size=model.facts.vocab_size,
        )
    if spec.least_indent or spec.most_line_ms > 0:
        return LineBounds(
            model.tokenizer.decoder(keep_texts=row.keep_texts, context=context),
            len(prompt.ids),
            indent=spec.least_indent,
            max_ms=spec.most_line_ms,
        )
    return None
