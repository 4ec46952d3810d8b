"""Compares variants, ways to get an answer that must all write the same tokens.

Variants are compared with the first one. Where two differ, the reference (mlx-lm's own forward over
the tokens both wrote) says how far apart their choices were: within a bound the difference is a
near-tie, which kernels of another width may flip; beyond it, it is a mismatch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from engine import guard
from engine.models.cpu_forms import stock_forms
from engine.models.load import LoadedModel
from engine.models.reference import forced_choices, reference_logits
from engine.outcome import SeqId
from engine.params import SamplingParams, SequenceParams
from engine.rows import new_row
from engine.sampling.plan import token_scores

NEAR_TIE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.5}
"""By the weights' type: the widest gap, in logits, that rounding is taken to explain.

Float32 kernels of other widths differ by up to 7e-5; a bfloat16 logit of 20 is a multiple of 0.125.
"""

DECIDED_GAP = 2.0
"""Gap from which a choice that differs from the reference's is a mismatch under teacher forcing."""


class VariantUnfit(Exception):
    """A variant cannot serve this model or case; the message says why."""


@dataclass(frozen=True, slots=True)
class ParityCase:
    """A way to choose tokens that all variants are asked for."""

    name: str
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class ParityRequest:
    """What every variant answers."""

    prompt_ids: tuple[int, ...]
    case: ParityCase
    max_tokens: int
    chunk_tokens: int
    """Most prompt tokens of one forward, in every variant."""
    batch: int
    """Rows of the batch variant."""
    context_tokens: int | None = None

    @property
    def params(self) -> SequenceParams:
        """The request as the engine takes it."""
        return SequenceParams(
            self.prompt_ids,
            sampling=self.case.sampling,
            max_tokens=self.max_tokens,
            context_tokens=self.context_tokens,
        )


Variant = Callable[[LoadedModel, ParityRequest], tuple[int, ...]]
"""Gives an answer's tokens, without an end token; raises `VariantUnfit` where it cannot."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two answers differ."""

    index: int
    """Of the answer."""
    ids: tuple[int | None, int | None]
    """What each variant wrote there; None: it had ended."""
    gap: float
    """How far the worse of the two lies under the reference's best score, in logits."""
    top_two_gap: float
    """How far apart the reference's best two scores are."""
    texts: tuple[str, str]
    """The two tokens as text; an end is empty."""


@dataclass(frozen=True, slots=True)
class PairResult:
    """Two variants on one prompt and case."""

    prompt: int
    case: str
    variants: tuple[str, str]
    tokens: tuple[int, int]
    """Lengths of the answers."""
    divergence: Divergence | None = None
    is_decided: bool = False
    """Whether the difference is larger than rounding explains."""
    not_run: str | None = None
    """Why the second variant gave no answer."""


@dataclass(frozen=True, slots=True)
class ForcedResult:
    """A variant's greedy answer, compared token by token with the reference's own choices."""

    prompt: int
    variant: str
    positions: int
    differing: int
    """Places where the reference would have written another token."""
    decided: int
    """Those of them where the reference's best two are further apart than the bound."""
    largest_gap: float
    """The largest such distance at a place that differs."""
    not_run: str | None = None


def parity_cases(seed: int) -> dict[str, ParityCase]:
    """Every case by its name.

    ``penalised`` is greedy and thus mlx-lm's too; ``seeded`` draws, adds DRY and has no filters, so
    that the distance of two choices is one of scores.
    """
    penalised = SamplingParams(
        repetition_penalty=1.1,
        repetition_context_size=64,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        seed=seed,
    )
    cases = (
        ParityCase("greedy", SamplingParams(seed=seed)),
        ParityCase("penalised", penalised),
        ParityCase("seeded", replace(penalised, temperature=0.8, dry_multiplier=0.8)),
    )
    return {case.name: case for case in cases}


def compare_variants(
    loaded: LoadedModel,
    requests: Sequence[tuple[int, ParityRequest]],
    variants: Mapping[str, Variant],
    *,
    near_tie: float,
) -> Iterator[PairResult]:
    """Each variant against the first one.

    Args:
        loaded: the model.
        requests: each with its prompt's number.
        variants: two or more, by name; the first one must serve every request.
        near_tie: the widest gap that is no mismatch.

    Raises:
        EngineError: a variant failed.
    """
    (first, variant), *others = variants.items()
    for prompt, request in requests:
        expected = variant(loaded, request)
        for name, other in others:
            pair = PairResult(prompt, request.case.name, (first, name), (len(expected), 0))
            try:
                answer = other(loaded, request)
            except VariantUnfit as unfit:
                yield replace(pair, not_run=str(unfit))
                continue
            found = _divergence(loaded, request, expected, answer)
            yield replace(
                pair,
                tokens=(len(expected), len(answer)),
                divergence=found,
                is_decided=found is not None and not found.gap <= near_tie,
            )


def compare_forced(
    loaded: LoadedModel,
    requests: Sequence[tuple[int, ParityRequest]],
    variants: Mapping[str, Variant],
    *,
    decided: float,
) -> Iterator[ForcedResult]:
    """Each variant's greedy answer against the reference that is made to follow it.

    Raises:
        EngineError: a variant failed.
    """
    for prompt, request in requests:
        for name, variant in variants.items():
            try:
                answer = variant(loaded, request)
            except VariantUnfit as unfit:
                yield ForcedResult(prompt, name, 0, 0, 0, 0.0, str(unfit))
                continue
            with stock_forms():
                choices = forced_choices(
                    loaded.model, request.prompt_ids, answer, chunk_tokens=request.chunk_tokens
                )
            gaps = [
                choice.top_two_gap
                for choice, token in zip(choices, answer, strict=True)
                if choice.best != token
            ]
            over = sum(gap > decided for gap in gaps)
            yield ForcedResult(prompt, name, len(answer), len(gaps), over, max(gaps, default=0.0))


def _divergence(
    loaded: LoadedModel,
    request: ParityRequest,
    expected: tuple[int, ...],
    answer: tuple[int, ...],
) -> Divergence | None:
    if expected == answer:
        return None
    shared = 0
    while shared < min(len(expected), len(answer)) and expected[shared] == answer[shared]:
        shared += 1
    first, second = (one[shared] if shared < len(one) else None for one in (expected, answer))
    scores = _scores(loaded, request, expected[:shared])
    ranked = mx.sort(scores)
    ends = sorted(loaded.eos_ids) or [0]
    at = [[token] if token is not None else ends for token in (first, second)]
    worst = mx.minimum(*(scores[mx.array(tokens)].max() for tokens in at))
    gap, top_two = guard.read(mx.stack([ranked[-1] - worst, ranked[-1] - ranked[-2]]))
    texts = (_token_text(loaded, first), _token_text(loaded, second))
    return Divergence(shared, (first, second), gap, top_two, texts)


def _scores(loaded: LoadedModel, request: ParityRequest, written: tuple[int, ...]) -> mx.array:
    """float32[V]: what the token after ``written`` is the largest of, by the reference's logits."""
    ids = request.prompt_ids + written
    with stock_forms():
        _, (logits,) = reference_logits(loaded.model, ids, 1, chunk_tokens=request.chunk_tokens)
    bound = loaded.facts.context_tokens + len(ids)
    row = new_row(SeqId(0), request.params, loaded, context_tokens=bound, text=None, hooks=None)
    return token_scores(row.sampler, ids, logits)


def _token_text(loaded: LoadedModel, token: int | None) -> str:
    return "" if token is None else loaded.tokenizer.decode([token], skip_special=False)
