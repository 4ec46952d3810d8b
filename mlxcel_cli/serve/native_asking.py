"""Turns bodies of llama.cpp's generation endpoints into rows: prompts, bounds, infill marks."""

from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus

import msgspec

from engine.errors import InvalidParams
from engine.scheduler.request import ScheduledRequest
from engine.text.rendered import RenderedPrompt
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.serve.asking import MAX_PROMPTS, Asked, Defaults, Prompt, Ticket, ask
from mlxcel_cli.serve.errors import NOT_SUPPORTED, ApiError
from mlxcel_cli.serve.line_bounds import LineBounds
from mlxcel_cli.serve.schema.native import InfillRequest, NativeOptions
from mlxcel_cli.serve.served_model import ServedModel

MAX_PREDICT = 2**31 - 1
MAX_PROBS = 100
"""Likely tokens that a place may show: each costs bytes in every frame."""

INFILL_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek's own letters
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""How model families spell the marks before a prefix, a suffix and what is between them."""
FILE_MARKS = ("<|file_sep|>", "<file_sep>")


def native_prompts(
    prompt: str | Sequence[str | int | list[str | int]], model: ServedModel
) -> tuple[Prompt, ...]:
    """The prompts of ``/completion``.

    A list with a token id in it is one prompt, texts between its ids included; a list without
    is several prompts.

    Raises:
        InvalidParams: there is none, or too many, or a token id is no token of the model.
        ContextOverflow: one is far too long.
    """
    if isinstance(prompt, str):
        return (_prompt([prompt], model),)
    if any(isinstance(one, int) for one in prompt):
        flat = [one for one in prompt if not isinstance(one, list)]
        if len(flat) < len(prompt):
            raise InvalidParams("prompt", "mixes token ids with lists of them")
        return (_prompt(flat, model),)
    if not 0 < len(prompt) <= MAX_PROMPTS:
        raise InvalidParams("prompt", f"must hold 1 to {MAX_PROMPTS} prompts, not {len(prompt)}")
    return tuple(
        _prompt(one if isinstance(one, list) else [one], model)
        for one in prompt
        if not isinstance(one, int)
    )


def infill_prompt(request: InfillRequest, model: ServedModel) -> Prompt:
    """Prefix and suffix between the model's own marks; the answer is what is between them.

    Raises:
        ApiError: the model has no such marks.
        ContextOverflow: the texts are far too long.
    """
    tokenizer = model.tokenizer
    marks = infill_marks(tokenizer)
    if marks is None:
        raise ApiError(
            HTTPStatus.NOT_IMPLEMENTED,
            f"{model.facts.name} has no fill-in-the-middle tokens; use /completion instead.",
            kind=NOT_SUPPORTED,
        )
    others = (chunk.text for chunk in request.input_extra)
    model.limit.check((*others, request.input_prefix, request.input_suffix, request.prompt))
    before, after, between = marks
    ids = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    ids += _extra_ids(request, tokenizer)
    ids += [before, *tokenizer.encode(request.input_prefix)]
    ids += [after, *tokenizer.encode(request.input_suffix)]
    ids += [between, *tokenizer.encode(request.prompt)]
    return Prompt(tuple(ids), tokenizer.decode(ids, skip_special=False))


def infill_marks(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """The ids of a model's marks for prefix, suffix and middle; None: it has none."""
    for names in INFILL_MARKS:
        before, after, between = (tokenizer.token_id(name) for name in names)
        if before is not None and after is not None and between is not None:
            return before, after, between
    return None


def native_ask(
    body: NativeOptions,
    prompts: tuple[Prompt, ...],
    model: ServedModel,
    defaults: Defaults,
    ticket: Ticket,
) -> Asked:
    """The rows of a request; asked for no token it writes one, as llama.cpp does.

    Raises:
        InvalidParams: a value is out of its range; names the field.
    """
    if body.n_predict is not None and not -1 <= body.n_predict <= MAX_PREDICT:
        raise InvalidParams(
            "n_predict",
            f"must be -1 (no bound) or from 0 to {MAX_PREDICT}, got {body.n_predict}",
        )
    if not 0 <= body.n_probs <= MAX_PROBS:
        raise InvalidParams("n_probs", f"must be from 0 to {MAX_PROBS}, got {body.n_probs}")
    if not 0 <= body.n_indent <= MAX_PREDICT:
        raise InvalidParams("n_indent", f"must be 0 (off) or more, got {body.n_indent}")
    if not -1 <= body.t_max_predict_ms <= MAX_PREDICT:
        raise InvalidParams(
            "t_max_predict_ms", f"must be -1 or 0 (off) or more, got {body.t_max_predict_ms}"
        )
    bound = 1 if body.n_predict == 0 else body.n_predict
    ticket = replace(ticket, logprobs=body.n_probs or None)
    body = msgspec.structs.replace(body, max_tokens=bound)
    asked = ask(body, prompts, model, defaults, ticket)
    if not body.n_indent and body.t_max_predict_ms <= 0:
        return asked
    return replace(asked, rows=tuple(_bounded(row, body, model) for row in asked.rows))


def mixed_ids(
    content: Sequence[str | int], model: ServedModel, *, field: str, parse_special: bool
) -> tuple[int, ...]:
    """The ids of texts and of the ids between them.

    Raises:
        InvalidParams: an id is no token of the model; names ``field``.
    """
    ids: list[int] = []
    for one in content:
        if isinstance(one, str):
            ids += model.tokenizer.encode(one, parse_special=parse_special)
            continue
        if not 0 <= one < model.facts.vocab_size:
            raise InvalidParams(
                field, f"token id {one} is outside this model's {model.facts.vocab_size} tokens"
            )
        ids.append(one)
    return tuple(ids)


def _prompt(content: Sequence[str | int], model: ServedModel) -> Prompt:
    """One prompt; it begins as the model's texts do, unless it begins with an id."""
    tokenizer = model.tokenizer
    model.limit.check(content)
    if len(content) == 1 and isinstance(content[0], str):
        return Prompt(tokenizer.encode_rendered(RenderedPrompt(content[0])), content[0])
    ids = mixed_ids(content, model, field="prompt", parse_special=True)
    bos = tokenizer.bos_id
    if content and isinstance(content[0], str) and tokenizer.adds_bos and bos is not None:
        ids = ids if ids[:1] == (bos,) else (bos, *ids)
    return Prompt(ids, tokenizer.decode(ids, skip_special=False))


def _bounded(row: ScheduledRequest, body: NativeOptions, model: ServedModel) -> ScheduledRequest:
    """A row that its lines may end, too."""
    bounds = LineBounds(
        model.tokenizer.decoder(keep_texts=row.keep_texts),
        len(row.params.prompt_ids),
        indent=body.n_indent,
        max_ms=body.t_max_predict_ms,
    )
    return replace(row, hooks=bounds)


def _extra_ids(request: InfillRequest, tokenizer: Tokenizer) -> list[int]:
    """Other files' texts, behind the model's mark of a file where it has one."""
    found = (tokenizer.token_id(name) for name in FILE_MARKS)
    mark = next((one for one in found if one is not None), None)
    ids: list[int] = []
    for chunk in request.input_extra:
        if mark is not None:
            ids.append(mark)
        text = f"{chunk.filename}\n{chunk.text}\n" if chunk.filename else f"{chunk.text}\n"
        ids += tokenizer.encode(text)
    return ids
