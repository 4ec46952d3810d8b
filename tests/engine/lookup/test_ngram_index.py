import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.lookup import ngram_index
from engine.lookup.ngram_index import Match, NgramIndex


def naive_find(context: Sequence[int], *, ngram_min: int, ngram_max: int) -> Match | None:
    """The answer by definition: longest suffix, then the latest earlier place with a follower."""
    for ngram in range(min(ngram_max, len(context) - 1), ngram_min - 1, -1):
        suffix = list(context[-ngram:])
        for start in range(len(context) - ngram - 1, -1, -1):
            if list(context[start : start + ngram]) == suffix:
                return Match(ngram, start + ngram)
    return None


def match_end(index: NgramIndex, context: Sequence[int]) -> Match | None:
    """The match of the context's own end, with the index brought up to date first."""
    index.extend()
    return index.match(context)


def proposal(context: Sequence[int], *, ngram_min=2, ngram_max=3, max_draft=7) -> tuple[int, ...]:
    index = NgramIndex(ngram_min=ngram_min, ngram_max=ngram_max, tokens=context)
    match = match_end(index, context)
    return index.after(match, max_draft) if match else ()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few tokens take every path: tables, bulk builds, merged and many segments."""
    monkeypatch.setattr(ngram_index, "SEGMENT_TOKENS", 16)
    monkeypatch.setattr(ngram_index, "TAIL_TOKENS", 8)
    monkeypatch.setattr(ngram_index, "BULK_TOKENS", 5)


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        pytest.param((1, 2, 3, 9, 1, 2), (3, 9, 1, 2), id="what followed the last two tokens"),
        pytest.param((5, 5, 5), (5,), id="a place may overlap the suffix, clipped at the end"),
        pytest.param((1, 2, 3, 4, 7, 2, 3), (4, 7, 2, 3), id="no three match, so two do"),
        pytest.param((1, 2, 8, 1, 2, 9, 1, 2), (9, 1, 2), id="the most recent place"),
        pytest.param((1, 2), (), id="too short for any follower"),
        pytest.param((), (), id="an empty context"),
        pytest.param((1, 2, 3, 1), (), id="one token is below the least n-gram"),
    ],
)
def test_worked_examples(context, expected):
    assert proposal(context) == expected


def test_the_longest_ngram_wins_though_its_proposal_is_shorter():
    # (2, 3) at 1 would give seven tokens; (1, 2, 3) near the end has four before the context ends.
    context = (1, 2, 3, 5, 6, 1, 2, 3, 4, 9, 2, 3, 8, 8, 8, 8, 8, 1, 2, 3)
    assert proposal(context)[0] == 4


def test_a_proposal_has_at_most_the_asked_length():
    assert proposal((*range(20), 0, 1), max_draft=4) == (2, 3, 4, 5)


@pytest.mark.usefixtures("small_segments")
@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=8),
    limits=st.lists(st.one_of(st.none(), st.integers(1, 30)), max_size=8),
    ngram_min=st.integers(1, 4),
    spread=st.integers(0, 4),
)
def test_every_answer_is_the_naive_scans(pieces, limits, ngram_min, spread):
    index = NgramIndex(ngram_min=ngram_min, ngram_max=ngram_min + spread)
    context: list[int] = []
    for place, piece in enumerate(pieces):
        index.append(piece)
        context += piece
        if place < len(limits):
            index.extend(limits[place])
        expected = naive_find(context, ngram_min=ngram_min, ngram_max=ngram_min + spread)
        assert match_end(index, context) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(2**31 - 3, 2**31), min_size=1, max_size=60), st.integers(1, 16))
def test_the_largest_token_ids_are_distinguished_at_every_length(context, ngram_max):
    bulk = NgramIndex(ngram_min=1, ngram_max=ngram_max, tokens=context)
    bulk._extend_segments(len(context) - 1)
    bulk._indexed = len(context) - 1
    expected = naive_find(context, ngram_min=1, ngram_max=ngram_max)
    assert bulk.match(context[-ngram_max:]) == expected
    small = NgramIndex(ngram_min=1, ngram_max=ngram_max, tokens=context)
    assert match_end(small, context) == expected


@pytest.mark.usefixtures("small_segments")
def test_a_build_in_slices_says_when_it_is_done():
    index = NgramIndex(ngram_min=2, ngram_max=3, tokens=range(100))
    steps = [index.extend(30) for _ in range(4)]
    assert steps == [False, False, False, True]
    assert index.is_current


def test_the_least_slice_makes_progress():
    index = NgramIndex(ngram_min=2, ngram_max=3, tokens=range(3))
    assert [index.extend(0), index.extend(0)] == [False, True]


def test_only_what_was_indexed_is_found():
    index = NgramIndex(ngram_min=2, ngram_max=3, tokens=(1, 2, 3, 9, 8, 7, 1, 2))
    assert index.match((8, 7)) is None
    index.extend(2)
    assert index.match((1, 2)) == Match(2, 2)
    assert index.match((9, 8)) is None


def test_appending_alone_indexes_nothing():
    index = NgramIndex(ngram_min=2, ngram_max=3)
    index.append(range(10))
    assert not index.is_current


def test_the_suffix_itself_is_no_earlier_place():
    index = NgramIndex(ngram_min=1, ngram_max=3, tokens=(4, 5, 6))
    assert match_end(index, (4, 5, 6)) is None


@pytest.mark.parametrize(
    ("context", "limit", "agreement"),
    [
        pytest.param((1, 2, 3, 4, 9, 1, 2, 3, 4), 24, 4, id="past the n-gram, to the beginning"),
        pytest.param((8, 2, 3, 4, 9, 7, 2, 3, 4), 24, 3, id="to the first difference"),
        pytest.param((1, 2, 3, 4, 9, 1, 2, 3, 4), 3, 3, id="to the limit"),
        pytest.param((5,) * 10, 24, 9, id="a period overlaps itself"),
    ],
)
def test_agreement_counts_the_equal_tokens_before_the_proposal(context, limit, agreement):
    index = NgramIndex(ngram_min=2, ngram_max=3, tokens=context)
    match = match_end(index, context)
    assert match is not None
    assert index.agreement(context, match, limit) == agreement


@pytest.mark.parametrize("piece_tokens", [131_072, 7], ids=["a prompt", "a long answer"])
def test_128k_tokens_cost_at_most_120_bytes_each(piece_tokens):
    tokens = [(i * 7919 + i * i * 31) % 50_021 for i in range(131_072)]
    tracemalloc.start()
    try:
        index = NgramIndex(ngram_min=2, ngram_max=3)
        for start in range(0, len(tokens), piece_tokens):
            index.append(tokens[start : start + piece_tokens])
            index.extend()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 120 * len(tokens)


def test_a_long_context_does_not_fall_apart_into_many_segments():
    tokens = [(i * 7919 + i * i * 31) % 50_021 for i in range(100_000)]
    index = NgramIndex(ngram_min=2, ngram_max=3, tokens=tokens)
    while not index.extend(1_500):
        pass
    assert len(index._segments) <= 100_000 // ngram_index.TAIL_TOKENS + 1
