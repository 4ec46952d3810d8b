"""From a request to a row: every check that needs the model, before any forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import ContextOverflow, InvalidParams
from engine.finish import FinishRules
from engine.kv.pool import CAPACITY_STEP
from engine.outcome import SeqId
from engine.params import SequenceParams, seeded
from engine.rows import Row, RowHooks
from engine.sampling.row_sampler import RowSampler
from engine.text.breakers import breaker_ids

if TYPE_CHECKING:
    from engine.models.load import LoadedModel
    from engine.text.row_text import RowText


def new_row(
    seq: SeqId,
    params: SequenceParams,
    loaded: LoadedModel,
    *,
    context_tokens: int,
    text: RowText | None,
    hooks: RowHooks | None,
) -> Row:
    """The record of a request that this model can serve.

    Args:
        seq: its handle.
        params: what was asked; a missing seed is drawn here.
        loaded: the model.
        context_tokens: most tokens a row of this engine may hold.
        text: the row's decoder and stop strings.
        hooks: what a feature decides for the row.

    Raises:
        InvalidParams: a token id outside the model's vocabulary.
        ContextOverflow: the prompt leaves no room for an answer.
    """
    check_ids(params, loaded.facts.vocab_size)
    bound = context_tokens
    if params.context_tokens is not None:
        bound = min(bound, params.context_tokens)
    if len(params.prompt_ids) >= bound:
        raise ContextOverflow(len(params.prompt_ids), bound)
    params = seeded(params)
    eos_ids = loaded.eos_ids | params.stop_ids
    rules = FinishRules(
        eos_ids=frozenset() if params.ignore_eos else eos_ids,
        max_tokens=params.max_tokens,
        context_tokens=bound,
        loop=params.loop,
    )
    return Row(seq, params, rules, _sampler(params, eos_ids, loaded), text, hooks)


def check_ids(params: SequenceParams, vocab_size: int) -> None:
    """Refuse ids past the logits width: MLX's CPU backend reads and writes out of bounds.

    Raises:
        InvalidParams: names the field and the id.
    """
    named = (
        ("prompt", params.prompt_ids),
        ("logit_bias", params.sampling.logit_bias),
        ("stop_ids", params.stop_ids),
    )
    for field, ids in named:
        for token in ids:
            if not 0 <= token < vocab_size:
                raise InvalidParams(
                    field, f"token id {token} is outside this model's {vocab_size} tokens"
                )


def _sampler(params: SequenceParams, eos_ids: frozenset[int], loaded: LoadedModel) -> RowSampler:
    sampling = params.sampling
    assert sampling.seed is not None
    breakers: tuple[tuple[int, ...], ...] = ()
    if sampling.has_dry:
        breakers = breaker_ids(loaded.tokenizer, sampling.dry_sequence_breakers)
    return RowSampler(
        sampling,
        seed=sampling.seed,
        choice=params.choice,
        vocab_size=loaded.facts.vocab_size,
        eos_ids=eos_ids,
        suppress_eos=params.ignore_eos,
        min_tokens=params.min_tokens,
        prompt_tokens=len(params.prompt_ids),
        dry_breakers=breakers,
    )


def expected_tokens(row: Row) -> int:
    """Room to make at once: the prompt and the first growth step, not a whole open end."""
    most = row.rules.max_tokens
    return row.prompt_tokens + (CAPACITY_STEP if most is None else min(most, CAPACITY_STEP))
