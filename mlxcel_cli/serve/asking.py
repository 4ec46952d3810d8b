"""Turns a typed request into rows for the scheduler: prompt ids, sampling, limits, choices."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any

from engine.errors import InvalidParams
from engine.params import LoopRule, SamplingParams, SequenceParams, seeded
from engine.prompt_cache.key import CacheUse
from engine.scheduler.queue import Priority
from engine.scheduler.request import ScheduledRequest
from engine.text.rendered import RenderedPrompt
from mlxcel_cli.engine_requests import token_bound
from mlxcel_cli.sampling_options import Bias, token_biases
from mlxcel_cli.serve.biases import read_biases
from mlxcel_cli.serve.schema.requests import ChatRequest, CompletionRequest, GenerationRequest
from mlxcel_cli.serve.served_model import ServedModel

MAX_CHOICES = 8
"""Rows of one batch that one request may ask for."""
MAX_PROMPTS = 64
MAX_TEXTS = 64
"""Stop strings, or sequence breakers."""
MAX_TEXT_LETTERS = 16_384
"""Letters of all of them: each row prepares them between two steps of everybody's."""
MAX_CHAT_LOGPROBS = 20
MAX_LEGACY_LOGPROBS = 5

SERVER_SAMPLING = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""llama.cpp's server defaults, where neither request, options nor model say anything."""

_OWN = frozenset({"seed", "logit_bias", "logprobs", "dry_sequence_breakers"})
_LOOP = (("loop_min_pattern", 1), ("loop_max_pattern", 0), ("loop_min_count", 12))


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the server's options say for requests that leave it open."""

    sampling: Mapping[str, Any]
    """Fields of SamplingParams that options, environment or options file set."""
    biases: tuple[Bias, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, rendered and encoded."""

    ids: tuple[int, ...]
    text: str
    opens_thinking: bool = False
    template: str = ""
    """Signature of the template that made it."""
    history_tokens: int | None = None
    """Where the conversation ends and the call for an answer begins, where that is asked for."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a request is beside its fields."""

    id: str
    priority: Priority = Priority.NORMAL
    logprobs: int | None = None
    """Likely tokens to tell at each place; None: no log-probabilities."""
    keep_texts: tuple[str, ...] = ()
    """Special tokens that are text all the same: the marks of reasoning."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The rows of one HTTP request. Row i is choice i of the response."""

    rows: tuple[ScheduledRequest, ...]
    prompts: tuple[Prompt, ...]
    """One for each n rows."""
    seed: int

    def prompt_of(self, index: int) -> Prompt:
        """The prompt of choice ``index``."""
        return self.prompts[index * len(self.prompts) // len(self.rows)]


def chat_prompt(chat: ChatRequest, model: ServedModel, *, must_fit: bool = True) -> Prompt:
    """The conversation as the model reads it.

    Args:
        chat: the request.
        model: whose template and tokenizer are used.
        must_fit: whether one that surely does not fit the context is refused unread.

    Raises:
        InvalidParams: a message has no proper shape, or the model has no chat template.
        TemplateError: the template refused the messages.
        ContextOverflow: the conversation is far too long.
    """
    template = model.template
    if template is None:
        raise InvalidParams(
            "messages",
            f"{model.facts.name} has no chat template (it looks like a base model); "
            "use /v1/completions",
        )
    if must_fit:
        # No template makes less than a token of a message.
        model.limit.check(range(len(chat.messages)))
    extra = dict(chat.chat_template_kwargs or {})
    if chat.reasoning_effort is not None:
        extra.setdefault("reasoning_effort", chat.reasoning_effort)
    rendered = template.render(
        chat.messages,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final=chat.continue_final_message,
        extra=extra,
    )
    if must_fit:
        model.limit.check((rendered.text,))
    ids = model.tokenizer.encode_rendered(rendered)
    history: int | None = None
    if model.keeps_whole_kv and chat.add_generation_prompt:
        said = template.render(chat.messages, add_generation_prompt=False, extra=extra)
        pairs = zip(ids, model.tokenizer.encode_rendered(said), strict=False)
        history = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return Prompt(
        ids,
        rendered.text,
        template.opens_thinking(rendered),
        template=hashlib.sha256((model.facts.template_text or "").encode()).hexdigest()[:16],
        history_tokens=history,
    )


def completion_prompts(request: CompletionRequest, model: ServedModel) -> tuple[Prompt, ...]:
    """The texts or token ids to go on from.

    Raises:
        InvalidParams: there are none, too many, or a mixture.
        ContextOverflow: one is far too long.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        return (_text_prompt(prompt, model),)
    if not prompt:
        raise InvalidParams("prompt", "is empty: there is nothing to go on from")
    if all(isinstance(one, int) for one in prompt):
        return (_ids_prompt([one for one in prompt if isinstance(one, int)], model),)
    if len(prompt) > MAX_PROMPTS:
        raise InvalidParams("prompt", f"holds {len(prompt)} prompts; at most {MAX_PROMPTS} may")
    if any(isinstance(one, int) for one in prompt):
        raise InvalidParams("prompt", "mixes token ids with texts")
    return tuple(
        _text_prompt(one, model) if isinstance(one, str) else _ids_prompt(one, model)
        for one in prompt
        if not isinstance(one, int)
    )


def ask(
    request: GenerationRequest,
    prompts: tuple[Prompt, ...],
    model: ServedModel,
    defaults: Defaults,
    ticket: Ticket,
) -> Asked:
    """The rows of a request.

    Raises:
        InvalidParams: a value is out of its range; names the field.
    """
    if not 1 <= request.n <= MAX_CHOICES:
        raise InvalidParams("n", f"must be from 1 to {MAX_CHOICES}, got {request.n}")
    params = seeded(
        SequenceParams(
            prompt_ids=prompts[0].ids,
            sampling=_sampling(request, model, defaults, ticket.logprobs),
            max_tokens=_max_tokens(request, defaults),
            min_tokens=request.min_tokens,
            stop_ids=_stop_ids(request, model.facts.vocab_size),
            ignore_eos=request.ignore_eos,
            loop=_loop(request),
        )
    )
    stops = _stops(request)
    rows: list[ScheduledRequest] = []
    for prompt in prompts:
        for choice in range(request.n):
            row = replace(params, prompt_ids=prompt.ids, choice=choice)
            rows.append(
                ScheduledRequest(
                    f"{ticket.id}/{len(rows)}",
                    row,
                    stops,
                    priority=ticket.priority,
                    keep_texts=ticket.keep_texts,
                    cache=_cache_use(request, prompt),
                    is_speculative=request.speculative,
                )
            )
    seed = params.sampling.seed
    assert seed is not None
    return Asked(tuple(rows), prompts, seed)


def default_sampling(model: ServedModel, defaults: Defaults) -> SamplingParams:
    """How a request that says nothing about it is sampled."""
    return _sampling(GenerationRequest(), model, defaults, None)


def priority_of(header: str | None) -> Priority:
    """The lane that an ``X-Priority`` header asks for.

    Raises:
        InvalidParams: there is no such lane.
    """
    if header is None:
        return Priority.NORMAL
    try:
        return Priority[header.strip().upper()]
    except KeyError:
        raise InvalidParams("X-Priority", f"must be high, normal or low, got {header!r}") from None


def chat_logprobs(chat: ChatRequest) -> int | None:
    """How many likely tokens each place shows; None: no log-probabilities at all.

    Raises:
        InvalidParams: ``top_logprobs`` is out of its range, or ``logprobs`` is not set.
    """
    top = chat.top_logprobs
    if top is None:
        return 0 if chat.logprobs else None
    if not 0 <= top <= MAX_CHAT_LOGPROBS:
        raise InvalidParams("top_logprobs", f"must be from 0 to {MAX_CHAT_LOGPROBS}, got {top}")
    if not chat.logprobs:
        raise InvalidParams("top_logprobs", "needs logprobs: true")
    return top


def completion_logprobs(request: CompletionRequest) -> int | None:
    """As `chat_logprobs`, for the legacy endpoint.

    Raises:
        InvalidParams: ``logprobs`` is out of its range, or the prompt's are asked for.
    """
    asked = request.logprobs
    if asked is None:
        return None
    if not 0 <= asked <= MAX_LEGACY_LOGPROBS:
        raise InvalidParams("logprobs", f"must be from 0 to {MAX_LEGACY_LOGPROBS}, got {asked}")
    if request.echo:
        raise InvalidParams("logprobs", "of the prompt (with echo) is not supported yet")
    return asked


def _text_prompt(text: str, model: ServedModel) -> Prompt:
    model.limit.check((text,))
    ids = model.tokenizer.encode_rendered(RenderedPrompt(text))
    return Prompt(ids, text)


def _ids_prompt(ids: Sequence[int], model: ServedModel) -> Prompt:
    model.limit.check(ids)
    vocab = model.facts.vocab_size
    for token in ids:
        if not 0 <= token < vocab:
            raise InvalidParams(
                "prompt", f"token id {token} is outside this model's {vocab} tokens"
            )
    return Prompt(tuple(ids), model.tokenizer.decode(ids, skip_special=False))


def _sampling(
    request: GenerationRequest, model: ServedModel, defaults: Defaults, logprobs: int | None
) -> SamplingParams:
    """The request's values over the options' over the model's over the server's."""
    values: dict[str, Any] = {"logprobs": logprobs}
    generation = model.generation
    for one in fields(SamplingParams):
        if one.name in _OWN:
            continue
        asked = (
            getattr(request, one.name),
            defaults.sampling.get(one.name),
            getattr(generation, one.name, None),
        )
        default = getattr(SERVER_SAMPLING, one.name)
        values[one.name] = next((value for value in asked if value is not None), default)
    breakers = request.dry_sequence_breakers
    if breakers is None:
        breakers = defaults.sampling.get("dry_sequence_breakers")
    if breakers is not None:
        values["dry_sequence_breakers"] = tuple(breakers)
        _refuse_long("dry_sequence_breakers", values["dry_sequence_breakers"])
    seed = defaults.sampling.get("seed") if request.seed is None else request.seed
    values["seed"] = None if seed == -1 else seed
    if request.logit_bias is None:
        biases = token_biases(defaults.biases, model.tokenizer.encode)
    else:
        biases = read_biases(request.logit_bias, model)
    return SamplingParams(**values, logit_bias=biases)


def _refuse_long(field: str, texts: Sequence[str]) -> None:
    if len(texts) > MAX_TEXTS:
        raise InvalidParams(field, f"holds {len(texts)} texts; at most {MAX_TEXTS} may")
    if sum(map(len, texts)) > MAX_TEXT_LETTERS:
        raise InvalidParams(field, f"is too long: at most {MAX_TEXT_LETTERS} letters in all")


def _cache_use(request: GenerationRequest, prompt: Prompt) -> CacheUse | None:
    if not request.cache_prompt:
        return None
    return CacheUse(
        session=request.prompt_cache_key or request.user or "",
        template=prompt.template,
        history_tokens=prompt.history_tokens,
    )


def _max_tokens(request: GenerationRequest, defaults: Defaults) -> int | None:
    return token_bound(defaults.max_tokens if request.max_tokens is None else request.max_tokens)


def _stop_ids(request: GenerationRequest, vocab_size: int) -> frozenset[int]:
    for token in request.stop_token_ids or ():
        if not 0 <= token < vocab_size:
            raise InvalidParams(
                "stop_token_ids", f"{token} is outside this model's {vocab_size} tokens"
            )
    return frozenset(request.stop_token_ids or ())


def _stops(request: GenerationRequest) -> tuple[str, ...]:
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    _refuse_long("stop", stops)
    return stops


def _loop(request: GenerationRequest) -> LoopRule:
    low, high, count = (
        default if (value := getattr(request, name)) is None else value for name, default in _LOOP
    )
    return LoopRule(min_pattern=low, max_pattern=high, min_count=count)
