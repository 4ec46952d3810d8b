"""Rows leave an engine and come back: what goes on is what would have gone on."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from engine.errors import (
    ContextOverflow,
    SnapshotError,
)
from engine.lookup.governor import GradedGovernor
from engine.params import SequenceParams, SpeculationParams
from engine.prefill import PrefillChunk
from engine.text.row_text import RowText
from tests.engine.inside import row_of, rows_of
from tests.engine.rigs import (
    assert_length_law,
    byte_tokenizer,
    cycle_engine,
    prefill,
    run_alone,
    run_together,
    tiny_engine,
)
from tests.engine.transfer_rigs import (
    GREEDY,
    KINDS,
    MIROSTAT,
    SEEDED,
    begun,
    engine_of,
    request,
    rest_of,
    steps_of,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
every_sampler = pytest.mark.parametrize(
    "sampling", [GREEDY, SEEDED, MIROSTAT], ids=["greedy", "seeded", "mirostat"]
)


@every_kind
@every_sampler
def test_a_row_restored_at_any_step_continues_identically(kind, sampling):
    params = request(sampling=sampling)
    expected = run_alone(engine_of(kind), params).tokens
    engine, other = engine_of(kind), engine_of(kind)
    seq = begun(engine, params)
    snapshots = [engine.transfer.snapshot(seq)]
    for answer in steps_of(engine, seq):
        if len(answer) < len(expected):
            snapshots.append(engine.transfer.snapshot(seq))
    assert answer == expected
    assert [len(one.written) for one in snapshots] == list(range(1, len(expected)))
    for snapshot in snapshots:
        assert rest_of(other, other.transfer.restore(snapshot)) == expected


@every_kind
@every_sampler
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_snapshot_with_steps_in_flight_is_of_the_committed_row(kind, sampling, in_flight):
    params = request(sampling=sampling)
    expected = run_alone(engine_of(kind), params).tokens
    engine, other = engine_of(kind), engine_of(kind)
    seq = begun(engine, params)
    engine.step([seq])
    tickets = [engine.submit([seq]) for _ in range(in_flight)]
    snapshot = engine.transfer.snapshot(seq)
    assert list(snapshot.written) == expected[:2]
    assert snapshot.kv.tokens == len(params.prompt_ids) + 1
    assert rest_of(other, other.transfer.restore(snapshot)) == expected
    for ticket in tickets:
        engine.collect(ticket)
    assert_length_law(engine, [seq])
    assert rest_of(engine, seq) == expected


@every_kind
def test_a_row_restored_while_its_prompt_is_read_continues_with_the_prompt(kind):
    params = request()
    expected = run_alone(engine_of(kind), params).tokens
    engine, other = engine_of(kind), engine_of(kind)
    seq = engine.open(params)
    at_once = other.transfer.restore(engine.transfer.snapshot(seq))
    assert other.cached_tokens(at_once) == 0
    for start in (0, 8, 16):
        engine.prefill(seq, PrefillChunk(start, start + 8, is_last=False))
        restored = other.transfer.restore(engine.transfer.snapshot(seq))
        assert other.cached_tokens(restored) == start + 8
        prefill(other, restored, cached=start + 8)
        assert rest_of(other, restored) == expected


@every_kind
def test_a_row_that_joined_with_its_last_prompt_token_in_flight_is_one_that_still_reads(kind):
    params = request()
    expected = run_alone(engine_of(kind), params).tokens
    engine, other = engine_of(kind), engine_of(kind)
    seq = engine.open(params)
    for start, stop in ((0, 8), (8, 16), (16, 24), (24, 29)):
        engine.prefill(seq, PrefillChunk(start, stop, is_last=False))
    engine.join(seq)
    ticket = engine.submit([seq])
    snapshot = engine.transfer.snapshot(seq)
    assert (snapshot.written, snapshot.kv.tokens) == ((), 29)
    restored = other.transfer.restore(snapshot)
    prefill(other, restored, cached=29)
    assert rest_of(other, restored) == expected
    engine.collect(ticket)
    assert rest_of(engine, seq) == expected


@every_kind
def test_a_row_leaves_a_batch_and_joins_another_and_no_neighbour_notices(kind):
    requests = [request(20, shift=1), request(30, shift=2, sampling=SEEDED), request(9, shift=5)]
    expected = [one.tokens for one in run_together(engine_of(kind), requests)]
    here, there = engine_of(kind), engine_of(kind)
    rows = [begun(here, params) for params in requests]
    theirs = begun(there, requests[2])
    here.step(rows)
    there.step([theirs])
    in_flight = here.submit(rows)
    moved = there.transfer.restore(here.transfer.snapshot(rows[1]))
    here.close(rows[1])
    here.collect(in_flight)
    assert [rest_of(here, seq) for seq in (rows[0], rows[2])] == [expected[0], expected[2]]
    there.step([theirs, moved])
    assert rest_of(there, moved) == expected[1]
    assert rest_of(there, theirs) == expected[2]


@pytest.mark.parametrize("kind", ["dense", "window as a mask", "ring"])
def test_a_row_restored_after_a_verify_round_continues_identically(kind):
    params = request(written=14)
    expected = run_alone(engine_of(kind), params).tokens
    engine, other = engine_of(kind), engine_of(kind)
    seq = begun(engine, params)
    for draft in ([*expected[1:4], 0, 0], [0, 0, 0, 0]):
        engine.verify(seq, draft)
        assert rest_of(other, other.transfer.restore(engine.transfer.snapshot(seq))) == expected


def test_the_governor_and_the_request_of_a_drafting_row_go_along():
    params = replace(request(), speculation=SpeculationParams(max_draft=4))
    engine, other = tiny_engine(), tiny_engine()
    seq = begun(engine, params)
    assert engine.transfer.snapshot(seq).drafter() is None
    first = engine.transfer.snapshot(seq)
    rested = replace(GradedGovernor.fresh(4), resting=3)
    engine.step([seq])
    snapshot = engine.transfer.snapshot(seq, governor=rested)
    drafter = snapshot.drafter()
    assert drafter.governor == rested
    assert drafter.observed_tokens == len(snapshot.written) == len(first.written) + 1
    assert drafter.propose(snapshot.ids[-1], 4) == ()
    assert row_of(other, other.transfer.restore(snapshot)).params.speculation == params.speculation


def test_text_that_was_released_stays_unsaid_and_what_was_held_is_released(tmp_path):
    tokenizer = byte_tokenizer(tmp_path)
    # Random bytes are often the start of a longer character, which the decoder holds back.
    engine = tiny_engine(tokenizer=tokenizer)
    params = request(written=12)
    whole = RowText(tokenizer.decoder(), ["never"])
    seq = engine.open(params, text=whole)
    prefill(engine, seq)
    said, snapshots = whole.text, []
    while True:
        snapshots.append((whole.text, engine.transfer.snapshot(seq)))
        (outcome,) = engine.step([seq])
        said += outcome.text
        if outcome.is_final:
            break
    engine.close(seq)
    assert said == whole.text
    for before, snapshot in snapshots:
        text = RowText(tokenizer.decoder(), ["never"])
        restored = engine.transfer.restore(snapshot, text=text)
        released = ""
        while True:
            (outcome,) = engine.step([restored])
            released += outcome.text
            if outcome.is_final:
                break
        engine.close(restored)
        assert before + released == whole.text


def test_other_stop_strings_than_the_row_had_are_refused(tmp_path):
    tokenizer = byte_tokenizer(tmp_path)
    engine = cycle_engine(vocab=259, period=128, tokenizer=tokenizer)
    seq = begun(engine, SequenceParams((ord("a"),), max_tokens=9))
    engine.step([seq])
    snapshot = engine.transfer.snapshot(seq)
    with pytest.raises(SnapshotError, match="stop strings"):
        engine.transfer.restore(snapshot, text=RowText(tokenizer.decoder(), ["bc"]))
    assert list(rows_of(engine)) == [seq]


class Passive:
    """Hooks that decide nothing."""

    def mask(self, ids):
        return None

    def finish(self, ids):
        return None


def test_a_row_with_hooks_is_not_restored_without():
    engine = tiny_engine()
    seq = engine.open(request(), hooks=Passive())
    prefill(engine, seq)
    snapshot = engine.transfer.snapshot(seq)
    with pytest.raises(SnapshotError, match="hooks"):
        engine.transfer.restore(snapshot)
    assert rest_of(engine, engine.transfer.restore(snapshot, hooks=Passive())) == rest_of(
        engine, seq
    )


def test_a_restored_row_keeps_its_context_bound():
    params = replace(request(30), max_tokens=None)
    small = engine_of("dense", context=40)
    expected = run_alone(small, params).tokens
    large = engine_of("dense", context=512)
    assert (
        rest_of(large, large.transfer.restore(small.transfer.snapshot(begun(small, params))))
        == expected
    )


def test_a_row_that_is_longer_than_this_engine_s_context_is_refused():
    large, small = engine_of("dense"), engine_of("dense", context=32)
    seq = begun(large, request(30))
    large.step([seq])
    with pytest.raises(ContextOverflow):
        small.transfer.restore(large.transfer.snapshot(seq))
    assert not rows_of(small)


# -- prefixes


@pytest.mark.parametrize("kind", ["dense", "window as a mask"])
def test_a_cut_prefix_is_bitwise_what_its_own_prefill_gives(kind):
    engine = engine_of(kind)
    params = request(40)
    seq = begun(engine, params)
    engine.step([seq])
    for tokens in (0, 8, 24, 32, 41):
        prefix = engine.transfer.export_prefix(seq, tokens)
        again = engine.transfer.export_prefix(seq).first(tokens)
        assert prefix.ids == again.ids == engine.ids(seq)[:tokens]
        if tokens > 40 or tokens == 0:
            continue
        alone = engine_of(kind)
        row = alone.open(replace(params, prompt_ids=params.prompt_ids[: tokens + 1]))
        prefill(alone, row)
        expected = alone.transfer.export_prefix(row, tokens)
        for ours, cut, theirs in zip(
            prefix.kv.layers, again.kv.layers, expected.kv.layers, strict=True
        ):
            for i in range(len(theirs)):
                np.testing.assert_array_equal(np.array(ours[i]), np.array(theirs[i]))
                np.testing.assert_array_equal(np.array(cut[i]), np.array(theirs[i]))


@pytest.mark.parametrize("kind", ["dense", "window as a mask"])
@pytest.mark.parametrize("shared", [1, 8, 24, 30, 40])
def test_a_row_over_an_adopted_prefix_writes_what_a_cold_one_does(kind, shared):
    engine = engine_of(kind)
    source = begun(engine, request(40))
    prefix = engine.transfer.export_prefix(source)
    other = tuple(prefix.ids[:shared]) + tuple(range(100, 100 + 30 - min(shared, 30)))
    params = SequenceParams(other, sampling=SEEDED, max_tokens=8)
    expected = run_alone(engine_of(kind), params).tokens
    seq = engine.transfer.open_with_prefix(params, prefix)
    assert engine.cached_tokens(seq) == min(shared, len(other) - 1) == prefix.shared_tokens(other)
    prefill(engine, seq, cached=engine.cached_tokens(seq))
    assert rest_of(engine, seq) == expected
    rest_of(engine, source)


@pytest.mark.parametrize("kind", ["ring", "recurrent"])
def test_a_ring_or_a_state_is_adopted_whole_or_not_at_all(kind):
    engine = engine_of(kind)
    source = engine.open(request(33))
    engine.prefill(source, PrefillChunk(0, 24, is_last=False))
    prefix = engine.transfer.export_prefix(source)
    assert (len(prefix.ids), prefix.kv.is_whole) == (24, True)
    longer = SequenceParams((*prefix.ids, 9, 8, 7), max_tokens=6)
    expected = run_alone(engine_of(kind), longer, chunk=24).tokens
    seq = engine.transfer.open_with_prefix(longer, prefix)
    prefill(engine, seq, cached=24)
    assert rest_of(engine, seq) == expected
    for ids in (prefix.ids, (*prefix.ids[:23], 1, 2)):
        assert prefix.shared_tokens(ids) == 0
        with pytest.raises(SnapshotError, match="only be used whole"):
            engine.transfer.open_with_prefix(SequenceParams(ids), prefix)
    with pytest.raises(SnapshotError, match="cannot be cut to 8: a ring or recurrent state"):
        engine.transfer.export_prefix(source, 8)
    with pytest.raises(SnapshotError, match="cannot be cut to 8: a ring or recurrent state"):
        prefix.first(8)
    assert list(rows_of(engine)) == [source]


def test_a_prompt_that_begins_otherwise_adopts_nothing():
    engine = tiny_engine()
    prefix = engine.transfer.export_prefix(begun(engine, request()))
    with pytest.raises(SnapshotError, match="begins with other tokens"):
        engine.transfer.open_with_prefix(SequenceParams((250, *prefix.ids)), prefix)


def test_a_finished_row_gives_its_kv_by_the_length_law():
    engine = cycle_engine(eos=[9])
    for params, held in (
        (SequenceParams((3, 4), max_tokens=3), 2 + 3 - 1),  # length: the last one is not in KV
        (SequenceParams((3, 4)), 2 + 4),  # 5, 6, 7, 8 and the end token: all of them are
    ):
        seq = begun(engine, params)
        while not engine.step([seq])[0].is_final:
            pass
        prefix = engine.transfer.export_prefix(seq)
        assert len(prefix.ids) == held
        assert prefix.ids == engine.ids(seq)[:held]
        with pytest.raises(SnapshotError, match="has ended"):
            engine.transfer.snapshot(seq)
        engine.close(seq)


def test_more_than_a_row_holds_cannot_be_detached():
    engine = tiny_engine()
    seq = begun(engine, request(30))
    with pytest.raises(SnapshotError, match="30 tokens, not 31"):
        engine.transfer.export_prefix(seq, 31)


# -- what a snapshot costs its row


@every_kind
def test_a_snapshot_holds_its_own_arrays_and_the_pool_continues_in_place(kind):
    engine = engine_of(kind, **({} if kind == "window as a mask" else {"context": 4096}))
    seqs = [begun(engine, request(20, shift=i, written=40)) for i in range(4)]
    engine.step(seqs)
    kept = []

    def step_cost(*, after_snapshot: bool) -> int:
        if after_snapshot:
            kept.append(engine.transfer.snapshot(seqs[1]))
        mx.synchronize()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        engine.step(seqs)
        mx.synchronize()
        return mx.get_peak_memory() - before

    plain = min(step_cost(after_snapshot=False) for _ in range(4))
    active = mx.get_active_memory()
    # A view instead of a copy would make each of these steps copy a layer of all four rows.
    assert min(step_cost(after_snapshot=True) for _ in range(4)) <= plain + 131072
    # And it would hold a pool each time, where a copy is no larger than its row.
    assert mx.get_active_memory() - active <= 4 * (1.5 * kept[0].nbytes + 16384) + 16384
    kept.clear()
    held = []
    for _ in range(10):
        engine.transfer.snapshot(seqs[1])
        engine.step(seqs)
        mx.synchronize()
        held.append(mx.get_active_memory())
    assert held[-1] <= held[4] + 16384
