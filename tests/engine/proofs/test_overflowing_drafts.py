"""A drafted token that the model cannot take is rejected; the row continues as without a draft."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from engine.engine import Engine
from engine.params import SamplingParams
from tests.engine.proofs.tiny_families import build
from tests.engine.proofs.tiny_geometry import VOCAB, WINDOW
from tests.engine.rigs import assert_length_law, begun, loaded

BAD = 41
"""Its embedding overflows."""

KINDS = {
    "dense": ("qwen3", 512),
    "window as a mask": ("gemma3_text", 4 * WINDOW),
    "ring": ("gemma3_text", 512),
    "one row at a time": ("afm7", 512),
}


class OverflowingEmbedding(nn.Module):
    """An embedding whose row of one token is not finite; the output head is as it was."""

    def __init__(self, inner: Any, value: float) -> None:
        super().__init__()
        self.inner, self.value = inner, value

    def __call__(self, ids: mx.array) -> mx.array:
        return mx.where((ids == BAD)[..., None], self.value, self.inner(ids))

    def as_linear(self, x: mx.array) -> mx.array:
        return self.inner.as_linear(x)


def overflowing(module: str, value: float) -> Any:
    model = build(module)
    for parent in model.modules():
        for name, child in parent.children().items():
            if isinstance(child, nn.Embedding) and child.weight.shape[0] == VOCAB:
                parent[name] = OverflowingEmbedding(child, value)
    return model


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_writes_what_it_writes_without_the_draft(kind: str, at: int, value: float):
    family, context = KINDS[kind]
    engine = Engine(loaded(overflowing(family, value), family, vocab=VOCAB, context=context))
    assert engine.choice.kind == kind
    params: dict[str, Any] = {
        "sampling": SamplingParams(temperature=0, logit_bias={BAD: -100.0}),
        "max_tokens": 14,
    }
    prompts = ((7, 5, 3), (2, 9, 4, 1, 8))

    seqs = begun(engine, *prompts, **params)
    while [outcome for outcome in engine.step(seqs) if not outcome.is_final]:
        pass
    plain = [engine.answer(seq) for seq in seqs]
    for seq in seqs:
        engine.close(seq)

    seqs = begun(engine, *prompts, **params)
    written = len(engine.answer(seqs[0]))
    draft = [*plain[0][written : written + at], BAD, 3]
    if engine.verifies_together:
        other = plain[1][written : written + 2]
        first, second = engine.verify_together(dict(zip(seqs, (draft, other), strict=True)))
        assert (second.accepted, second.error) == (2, None)
    else:
        first = engine.verify(seqs[0], draft)
    assert first.accepted <= at
    assert first.error is None
    assert_length_law(engine, seqs)
    left = list(seqs)
    while left:
        outcomes = engine.step(left)
        assert [outcome.error for outcome in outcomes] == [None] * len(left)
        left = [outcome.seq for outcome in outcomes if not outcome.is_final]
    assert [engine.answer(seq) for seq in seqs] == plain
