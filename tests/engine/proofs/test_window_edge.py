"""Sliding windows: what is chosen when the engine is made, and rows on both sides of the edge."""

from random import Random
from typing import Any

import pytest

from engine.engine import Engine
from engine.kv.choose import FULL_WINDOW_FACTOR
from engine.models.reference import reference_logits
from engine.params import SamplingParams, SequenceParams
from tests.engine.proofs.sweep import CHUNK, STEPS, Row, step
from tests.engine.rigs import Watched, loaded, prefill, run_alone, tiny_model

WINDOW = 16
EDGE = (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW)
AFFORDED = FULL_WINDOW_FACTOR * WINDOW
CLOSE = 1e-4

each_context = pytest.mark.parametrize("context", [AFFORDED, AFFORDED + 1], ids=["mask", "ring"])


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("gemma3")


def engine_of(model: Any, context: int) -> Engine:
    return Engine(loaded(model, "gemma3", context=context))


def prompt_of(tokens: int) -> tuple[int, ...]:
    rng = Random(f"window {tokens}")
    return tuple(rng.randrange(64) for _ in range(tokens))


@pytest.mark.parametrize(
    ("context", "kind"),
    [
        (WINDOW - 1, "window as a mask"),
        (WINDOW, "window as a mask"),
        (WINDOW + 1, "window as a mask"),
        (2 * WINDOW, "window as a mask"),
        (AFFORDED, "window as a mask"),
        (AFFORDED + 1, "ring"),
        (2 * AFFORDED, "ring"),
    ],
)
def test_the_full_length_is_kept_while_the_context_is_short_enough(
    model: Any, context: int, kind: str
):
    choice = engine_of(model, context).choice
    assert choice.kind == kind
    assert str(context) in choice.why
    assert str(WINDOW) in choice.why


@each_context
@pytest.mark.parametrize("first", EDGE)
def test_rows_around_the_windows_edge_share_a_batch(model: Any, context: int, first: int):
    # mlx-lm#983, #1035, #742, #736: rotating caches of different lengths could not be merged.
    engine = engine_of(model, context)
    watched = Watched(engine)

    def row(tokens: int) -> Row:
        prompt = prompt_of(tokens)
        return Row(
            engine, watched, prompt, reference_logits(model, prompt, STEPS, chunk_tokens=CHUNK)
        )

    rows = [row(first)]
    step(rows)
    for tokens in EDGE:
        rows.append(row(tokens))
        step(rows)
    for _ in range(3):
        step(rows)
    assert max(row.worst for row in rows) <= CLOSE
    assert [row.tie for row in rows if row.tie] == []


@each_context
@pytest.mark.parametrize("tokens", [WINDOW - 3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW])
def test_drafts_across_the_windows_edge_change_nothing(model: Any, context: int, tokens: int):
    # mlx-lm#1423, #1427, #1914: speculation went wrong, silently, once the window was full.
    params = SequenceParams(
        prompt_of(tokens), SamplingParams(temperature=0, seed=0), max_tokens=2 * WINDOW
    )
    plain = run_alone(engine_of(model, context), params).tokens
    engine = engine_of(model, context)
    seq = engine.open(params)
    written = [prefill(engine, seq).token]
    while len(written) < len(plain):
        room = engine.draft_room(seq, 4)
        draft = plain[len(written) :][:room]
        if len(draft) > 1 and len(written) % 3:
            draft[-1] = (draft[-1] + 1) % 64
        steps = engine.verify(seq, draft).steps if draft else engine.step([seq])
        written += [outcome.token for outcome in steps]
    assert written == plain


@each_context
def test_a_long_prompt_of_many_chunks_goes_through_a_short_window(model: Any, context: int):
    # mlx-lm#1493: a prompt of many chunks hung.
    prompt = prompt_of(context - 12)
    engine = engine_of(model, context)
    row = Row(
        engine,
        Watched(engine),
        prompt,
        reference_logits(model, prompt, STEPS, chunk_tokens=CHUNK),
    )
    for _ in range(8):
        step([row])
    assert row.worst <= CLOSE
