"""One row's logits against mlx-lm's own forwards with its own caches."""

import mlx.core as mx
import numpy as np
import pytest

from engine.models.reference import reference_logits, reference_tokens
from engine.params import SequenceParams
from tests.engine.inside import inner_model, put_model
from tests.engine.mlx_lm_batch import mlx_lm_batch
from tests.engine.rigs import Watched, prefill, run_alone, run_together, tiny_engine

STEPS = 64
WINDOW = 16


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * at + 13 * salt + 5) % 250 for at in range(length))


def our_logits(engine, ids, *, steps: int, chunk: int) -> tuple[list[int], list[mx.array]]:
    """What the engine wrote greedily, and the logits of every token."""
    watched = Watched(engine)
    answer = run_alone(engine, SequenceParams(ids, max_tokens=steps), chunk=chunk)
    put_model(engine, watched._model)
    return answer.tokens, [logits[0, -1] for logits in watched.logits[-steps:]]


def assert_bitwise(engine, ids, *, chunk: int, steps: int = STEPS) -> None:
    tokens, logits = our_logits(engine, ids, steps=steps, chunk=chunk)
    theirs, expected = reference_logits(inner_model(engine), ids, steps, chunk_tokens=chunk)
    assert tokens == theirs
    for ours, reference in zip(logits, expected, strict=True):
        np.testing.assert_array_equal(np.array(ours), np.array(reference))


@pytest.mark.parametrize("family", ["llama", "qwen3", "hybrid"])
@pytest.mark.parametrize(
    ("length", "chunk"),
    [
        pytest.param(1, 8, id="one token"),
        pytest.param(2, 8, id="two tokens"),
        pytest.param(40, 8, id="chunks and a rest"),
        pytest.param(41, 8, id="whole chunks"),
        pytest.param(40, 2048, id="one chunk"),
        pytest.param(300, 128, id="growing the pool"),
    ],
)
def test_one_row_is_mlx_lms_own_to_the_bit(family: str, length: int, chunk: int):
    assert_bitwise(tiny_engine(family), prompt(length), chunk=chunk)


def test_a_window_model_below_its_window_is_mlx_lms_own_to_the_bit():
    engine = tiny_engine("gemma3", sliding_window=128, context=512)
    assert engine.choice.kind == "window as a mask"
    assert_bitwise(engine, prompt(40), chunk=8)


@pytest.mark.parametrize(("kind", "context"), [("window as a mask", 4 * WINDOW), ("ring", 512)])
@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW])
def test_a_window_model_past_its_window_is_mlx_lms_own_within_float_noise(
    kind: str, context: int, length: int
):
    engine = tiny_engine("gemma3", context=context)
    assert engine.choice.kind == kind
    steps = context - length - 1 if kind == "window as a mask" else STEPS
    tokens, logits = our_logits(engine, prompt(length), steps=steps, chunk=8)
    theirs, expected = reference_logits(inner_model(engine), prompt(length), steps, chunk_tokens=8)
    assert tokens == theirs
    for ours, reference in zip(logits, expected, strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(reference), atol=1e-4)
        assert mx.argmax(ours).item() == mx.argmax(reference).item()


def test_a_pool_that_held_more_rows_is_mlx_lms_own_to_the_bit_again():
    engine = tiny_engine()
    others = [engine.open(SequenceParams(prompt(9, salt))) for salt in range(3)]
    for seq in others:
        prefill(engine, seq)
    seq = engine.open(SequenceParams(prompt(20), max_tokens=8))
    watched = Watched(engine)
    prefill(engine, seq)
    for other in others:
        engine.close(other)
    tokens = [engine.step([seq])[0].token for _ in range(7)]
    theirs, expected = reference_logits(watched._model, prompt(20), 8, chunk_tokens=8)
    assert [engine.ids(seq)[20], *tokens] == theirs
    for ours, reference in zip(watched.logits[-8:], expected, strict=True):
        np.testing.assert_array_equal(np.array(ours[0, -1]), np.array(reference))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "hybrid"])
def test_greedy_answers_are_those_of_mlx_lms_generate_step(family: str):
    engine = tiny_engine(family)
    for salt, length in enumerate((1, 5, 23, 40)):
        ids = prompt(length, salt)
        ours = run_alone(engine, SequenceParams(ids, max_tokens=40)).tokens
        assert ours == reference_tokens(inner_model(engine), ids, max_tokens=40)


@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
def test_a_batch_answers_as_mlx_lms_continuous_batching(family: str):
    engine = tiny_engine(family)
    prompts = [prompt(length, salt) for salt, length in enumerate((3, 15, 16, 17, 32))]
    ours = run_together(engine, [SequenceParams(ids, max_tokens=30) for ids in prompts])
    theirs = mlx_lm_batch(inner_model(engine), prompts, max_tokens=30)
    assert [answer.tokens for answer in ours] == theirs


def test_the_reference_shows_a_difference():
    engine = tiny_engine()
    ids = prompt(40)
    _, logits = our_logits(engine, ids, steps=1, chunk=8)
    _, expected = reference_logits(inner_model(engine), (ids[0] + 1, *ids[1:]), 1)
    assert not np.array_equal(np.array(logits[0]), np.array(expected[0]))
