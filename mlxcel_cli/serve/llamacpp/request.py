"""Turns bodies of llama.cpp's generation endpoints into prompts and generation specs."""

from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus

from engine.errors import InvalidParams
from engine.scheduler.queue import Priority
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.serve.errors import NOT_SUPPORTED, ApiError
from mlxcel_cli.serve.generation import GenerationSpec
from mlxcel_cli.serve.llamacpp.schema import InfillRequest, NativeOptions
from mlxcel_cli.serve.prompts import MAX_PROMPTS, EncodedPrompt, encode_text
from mlxcel_cli.serve.served_model import ServedModel

MAX_PREDICT = 2**31 - 1
MAX_PROBS = 100
"""Likely tokens that a place may show: each costs bytes in every frame."""

INFILL_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek's own characters
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""How model families spell the marks before a prefix, a suffix and what is between them."""
FILE_MARKS = ("<|file_sep|>", "<file_sep>")


def completion_prompts(
    prompt: str | Sequence[str | int | list[str | int]], model: ServedModel
) -> tuple[EncodedPrompt, ...]:
    """The prompts of ``/completion``.

    A list with a token id in it is one prompt, texts between its ids included; a list without
    is several prompts.

    Raises:
        InvalidParams: there is none, or too many, or a token id is no token of the model.
        ContextOverflow: one is far too long.
    """
    if isinstance(prompt, str):
        return (encode_text([prompt], model),)
    if any(isinstance(one, int) for one in prompt):
        flat = [one for one in prompt if not isinstance(one, list)]
        if len(flat) < len(prompt):
            raise InvalidParams("prompt", "mixes token ids with lists of them")
        return (encode_text(flat, model),)
    if not 0 < len(prompt) <= MAX_PROMPTS:
        raise InvalidParams("prompt", f"must hold 1 to {MAX_PROMPTS} prompts, not {len(prompt)}")
    return tuple(
        encode_text(one if isinstance(one, list) else [one], model)
        for one in prompt
        if not isinstance(one, int)
    )


def infill_prompt(request: InfillRequest, model: ServedModel) -> EncodedPrompt:
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
    return EncodedPrompt(tuple(ids), tokenizer.decode(ids, skip_special=False))


def infill_marks(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """The ids of a model's marks for prefix, suffix and middle; None: it has none."""
    for names in INFILL_MARKS:
        before, after, between = (tokenizer.token_id(name) for name in names)
        if before is not None and after is not None and between is not None:
            return before, after, between
    return None


def llamacpp_spec(body: NativeOptions, priority: Priority) -> GenerationSpec:
    """What a request asks for; asked for no token it writes one, as llama.cpp does.

    Raises:
        InvalidParams: a value is out of its range; names the field.
    """
    ranges = (
        ("n_predict", -1, MAX_PREDICT, "-1 (no bound) or from 0 to"),
        ("n_probs", 0, MAX_PROBS, "from 0 to"),
        ("n_indent", 0, MAX_PREDICT, "0 (off) or more, at most"),
        ("t_max_predict_ms", -1, MAX_PREDICT, "-1 or 0 (off) or more, at most"),
    )
    for name, least, most, allowed in ranges:
        value = getattr(body, name)
        if value is not None and not least <= value <= most:
            raise InvalidParams(name, f"must be {allowed} {most}, got {value}")
    spec = body.spec(
        priority,
        logprobs=body.n_probs or None,
        least_indent=body.n_indent,
        most_line_ms=body.t_max_predict_ms,
    )
    return replace(spec, max_tokens=1 if body.n_predict == 0 else body.n_predict)


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
