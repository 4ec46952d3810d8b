"""Rounds of several rows write what rounds of each write, and those what plain steps write.

A difference of random models counts unless it is a near-tie (`schedules.near_tie`); the cycle
model's logits lie far apart, so there every token counts.
"""

from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import guard
from engine.engine import Engine
from engine.errors import InvalidParams, UnsupportedModel
from engine.finish import FinishCause
from engine.outcome import SeqId
from engine.params import SamplingParams, SequenceParams
from tests.engine.inside import forwards_of, row_of, storage_of
from tests.engine.proofs.schedules import VOCAB, Request, near_tie
from tests.engine.rigs import (
    Watched,
    assert_length_law,
    begun,
    cycle_engine,
    loaded,
    prefill,
    run_alone,
    tiny_engine,
    tiny_model,
)

KINDS = {
    "llama": ("llama", 512),
    "gemma3 below four windows": ("gemma3", 64),
    "gemma3 ring": ("gemma3", 512),
}
TOKENS = 14
SAMPLERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "repetition_penalty": 1.3, "repetition_context_size": 8},
    {"temperature": 0.0, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.0, "dry_multiplier": 2.0, "dry_allowed_length": 1},
    {"temperature": 0.0, "logit_bias": {7: 3.0, 12: -5.0}},
    {"temperature": 1.0, "min_p": 0.05, "xtc_probability": 0.5, "xtc_threshold": 0.05},
)


@pytest.fixture(scope="module", params=KINDS)
def engines(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    """Two engines on one model: of the rows together, and of each alone."""
    family, context = KINDS[request.param]
    model = tiny_model(family, hidden_size=32, intermediate_size=64)
    return [Engine(loaded(model, family, context=context, tokenizer=tokenizer)) for _ in range(2)]


def requests(count: int, *, greedy: bool) -> list[SequenceParams]:
    """Rows of many lengths."""
    rng = Random(f"{count} {greedy}")
    return [
        SequenceParams(
            tuple(rng.randrange(256) for _ in range(rng.choice((1, 5, 15, 16, 17, 33)))),
            SamplingParams(**SAMPLERS[0 if greedy else at % len(SAMPLERS)], seed=at),
            max_tokens=rng.randint(TOKENS - 4, TOKENS),
            ignore_eos=at % 3 == 0,
        )
        for at in range(count)
    ]


def drafted(rng: Random, answer: list[int], written: int, room: int) -> list[int]:
    """Right, wrong from some place on, wrong, or empty."""
    ahead = answer[written : written + rng.choice((0, room, rng.randint(0, room)))]
    wrong = rng.randrange(2 * len(ahead) + 1)
    return [(t + 1) % VOCAB if i >= wrong else t for i, t in enumerate(ahead)]


def write(
    engine: Engine, params: list[SequenceParams], answers: list[list[int]], *, together: bool
) -> list[list[int]]:
    """All rows to their ends, by rounds; each row's drafts are the same either way."""
    rngs = [Random(at) for at in range(len(params))]
    seqs = [engine.open(one) for one in params]
    written = {seq: [prefill(engine, seq).token] for seq in seqs}
    live = list(seqs)
    while live:
        drafts = {
            seq: drafted(
                rngs[seq - seqs[0]],
                answers[seq - seqs[0]],
                len(written[seq]),
                engine.draft_room(seq, 5),
            )
            for seq in live
        }
        if together:
            outcomes = engine.verify_together(drafts)
        else:
            outcomes = [engine.verify(seq, draft) for seq, draft in drafts.items()]
        assert_length_law(engine, live)
        for outcome in outcomes:
            assert outcome.error is None
            assert len(outcome.steps) <= outcome.accepted + 1
            written[outcome.seq] += [step.token for step in outcome.steps]
            if outcome.steps[-1].is_final:
                live.remove(outcome.seq)
    for seq in seqs:
        engine.close(seq)
    return list(written.values())


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "samplers"])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_together_is_one_by_one_is_plain(engines, count: int, greedy: bool):
    engine, judge = engines
    params = requests(count, greedy=greedy)
    plain = [run_alone(judge, one).tokens for one in params]
    for together in (True, False):
        written = write(engine, params, plain, together=together)
        for one, ours, theirs in zip(params, written, plain, strict=True):
            if ours == theirs:
                continue
            pairs = zip(ours, theirs, strict=False)
            at = next(i for i, (a, b) in enumerate(pairs) if a != b)
            request = Request(one, chunk=8, hooks=False, arrival=0, cancel=None)
            assert near_tie(judge, request, theirs[:at], theirs[at], ours[at]), (one, ours, theirs)


# -- the cycle model: token t is followed by t + 1


def is_next(before: int, count: int) -> list[int]:
    return [(before + i) % 16 for i in range(1, count + 1)]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(1, 40), st.integers(1, 30)),
        st.tuples(st.just("close"), st.integers(0, 9), st.none()),
        st.tuples(st.just("step"), st.sets(st.integers(0, 9), min_size=1), st.none()),
        st.tuples(
            st.just("verify"),
            st.dictionaries(
                st.integers(0, 9), st.tuples(st.integers(0, 6), st.integers(0, 8)), min_size=1
            ),
            st.none(),
        ),
    ),
    max_size=24,
)


@pytest.fixture(scope="module")
def cycle() -> Engine:
    return cycle_engine()


def verify(
    cycle: Engine, live: dict[SeqId, tuple[int, int]], asked: dict[SeqId, tuple[int, int]]
) -> None:
    """A round of drafts of so many tokens, so many of them right, as far as there is room."""
    drafts, right = {}, {}
    for seq, (length, good) in asked.items():
        draft = is_next(live[seq][0], min(length, cycle.draft_room(seq, 6)))
        right[seq] = min(good, len(draft))
        drafts[seq] = [t if i < good else (t + 5) % 16 for i, t in enumerate(draft)]
    for outcome in cycle.verify_together(drafts):
        newest, left = live[outcome.seq]
        tokens = [step.token for step in outcome.steps]
        assert tokens == is_next(newest, right[outcome.seq] + 1)
        assert outcome.accepted == right[outcome.seq]
        live[outcome.seq] = (tokens[-1], left - len(tokens))


@settings(max_examples=60)
@given(actions=actions)
def test_steps_rounds_and_rows_that_come_and_go_mix_in_any_order(cycle, actions):
    live: dict[SeqId, tuple[int, int]] = {}
    """Newest token and tokens left of each row that decodes."""
    for action, what, more in actions:
        seqs = sorted(live)
        if action == "open":
            prompt = tuple((what + i) % 16 for i in range(what))
            (seq,) = begun(cycle, prompt, max_tokens=more)
            assert cycle.last_token(seq) == (prompt[-1] + 1) % 16
            live[seq] = (cycle.last_token(seq), more - 1)
        elif action == "close" and seqs:
            gone = seqs[what % len(seqs)]
            cycle.close(gone)
            del live[gone]
        elif action == "step" and seqs:
            for outcome in cycle.step(sorted({seqs[at % len(seqs)] for at in what})):
                newest, left = live[outcome.seq]
                assert outcome.token == (newest + 1) % 16
                live[outcome.seq] = (outcome.token, left - 1)
        elif action == "verify" and seqs:
            verify(cycle, live, {seqs[at % len(seqs)]: one for at, one in what.items()})
        for seq in [seq for seq, (_, left) in live.items() if left == 0]:
            assert not cycle.wants_step(seq)
            cycle.close(seq)
            del live[seq]
        assert_length_law(cycle, live)
    for seq in live:
        cycle.close(seq)
    assert not storage_of(cycle).arrays()


def test_ends_inside_a_draft_are_each_rows_own():
    engine = cycle_engine(eos=[9])
    rows = [
        begun(engine, (3,))[0],
        begun(engine, (6,))[0],
        begun(engine, (11,), max_tokens=3)[0],
        begun(engine, (12,), ignore_eos=True)[0],
    ]
    drafts = {seq: is_next(engine.last_token(seq), 2) for seq in rows}
    outcomes = engine.verify_together(drafts)
    assert [[step.token for step in one.steps] for one in outcomes] == [
        [5, 6, 7], [8, 9], [13, 14], [14, 15, 0],
    ]  # fmt: skip
    assert [one.accepted for one in outcomes] == [2, 1, 1, 2]
    ends = [None, FinishCause.EOS, FinishCause.LENGTH, None]
    assert [one.steps[-1].finish for one in outcomes] == ends
    assert [engine.drafting.held_tokens(seq) for seq in rows] == [4, 3, 3, 4]


def test_one_forward_and_one_read_serve_all_greedy_rows(monkeypatch):
    engine = cycle_engine()
    seqs = begun(engine, (3,), (9, 10), (1, 2, 3))
    watched = Watched(engine)
    reads, read = [], guard.read

    def noted(array: mx.array) -> list:
        reads.append(array.shape)
        return read(array)

    monkeypatch.setattr(guard, "read", noted)
    engine.verify_together(dict(zip(seqs, [(5, 6, 7), (), (5,)], strict=True)))
    assert (watched.calls, reads) == (1, [(7,)])
    assert watched.fed[0].shape == (3, 4)


def test_the_pool_is_as_wide_as_the_rows_need_when_rows_have_left():
    engine = cycle_engine()
    seqs = begun(engine, *((token,) for token in range(8)))
    for seq in seqs[:3] + seqs[4:7]:
        engine.close(seq)
    watched = Watched(engine)
    outcomes = engine.verify_together({seqs[7]: (9, 10), seqs[3]: (5,)})
    assert watched.fed[0].shape == (2, 3)
    assert [[step.token for step in one.steps] for one in outcomes] == [[9, 10, 11], [5, 6]]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_rows_that_are_not_in_the_round_are_untouched_to_the_bit(family):
    # A dense engine's keys and values, and what the row goes on to write.
    answers = []
    for busy in (False, True):
        engine = tiny_engine(family, context=64)
        a, b, rider = begun(engine, (5, 6, 7), (1,), tuple(range(20)))
        reading = engine.open(SequenceParams(tuple(range(30, 50))))
        half = row_of(engine, reading)
        logits = forwards_of(engine).of_row(half, half.ids[:9])
        mx.eval(logits)
        if busy:
            for _ in range(3):
                engine.verify_together({a: (1, 2, 3, 4, 5, 6), b: ()})
        kept = [
            np.array(array[row_of(engine, seq).slot, :, :held])
            for seq, held in ((rider, 20), (reading, 9))
            for array in storage_of(engine).arrays()
        ]
        watched = Watched(engine)
        tokens = [engine.verify(rider, ()).steps[0].token for _ in range(5)]
        rest = forwards_of(engine).of_row(half, half.ids[9:])
        answers.append([*kept, *map(np.array, watched.logits), np.array(tokens), np.array(rest)])
    for one, two in zip(*answers, strict=True):
        np.testing.assert_array_equal(one, two)


# -- what cannot, and what is refused


@pytest.mark.parametrize(
    ("family", "context", "can"),
    [
        ("llama", 512, True),
        ("gemma3", 64, True),
        ("gemma3", 512, True),
        ("hybrid", 512, False),
        ("phi3small", 512, False),
    ],
)
def test_what_cannot_verify_together_says_so_and_verifies_one_by_one(family, context, can):
    model = tiny_model("llama" if family == "phi3small" else family)
    engine = Engine(loaded(model, family, context=context))
    seqs = begun(engine, (3, 4), (9,))
    assert engine.verifies_together == can
    drafts = dict.fromkeys(seqs, ())
    if can:
        together = [one.steps for one in engine.verify_together(drafts)]
    else:
        watched = Watched(engine)
        with pytest.raises(UnsupportedModel):
            engine.verify_together(drafts)
        assert watched.calls == 0
        together = [engine.verify(seq, ()).steps for seq in seqs]
    assert_length_law(engine, seqs)
    others = Engine(loaded(model, family, context=context))
    expected = [run_alone(others, SequenceParams(ids, max_tokens=2)) for ids in ((3, 4), (9,))]
    assert [steps[0].token for steps in together] == [one.tokens[1] for one in expected]


@pytest.mark.parametrize("token", [-1, 16, 2**40])
def test_a_made_up_token_is_refused_before_anything_happens(token):
    engine = cycle_engine()
    seqs = begun(engine, (3,), (9,))
    watched = Watched(engine)
    with pytest.raises(InvalidParams, match="draft"):
        engine.check_draft((5, token))
    with pytest.raises(InvalidParams, match="draft"):
        engine.verify_together({seqs[0]: (5, 6), seqs[1]: (11, token)})
    assert watched.calls == 0
    assert_length_law(engine, seqs)
    engine.check_draft(())
