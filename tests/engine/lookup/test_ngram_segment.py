from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine.lookup.ngram_segment import NgramSegment


def naive_longest(tokens, suffix, *, start, stop, ngram_min, ngram_max):
    """Length and latest end of the longest n-gram that ends in [start, stop) and like suffix."""
    for ngram in range(min(ngram_max, len(suffix)), ngram_min - 1, -1):
        for end in range(stop - 1, max(start, ngram - 1) - 1, -1):
            if tokens[end - ngram + 1 : end + 1] == list(suffix[-ngram:]):
                return ngram, end
    return None


@given(data=st.data(), tokens=st.lists(st.integers(0, 2), min_size=2, max_size=50))
def test_the_longest_match_is_the_naive_scans(data, tokens):
    start = data.draw(st.integers(0, len(tokens) - 1))
    stop = data.draw(st.integers(start + 1, len(tokens)))
    ngram_min = data.draw(st.integers(1, 2))
    ngram_max = data.draw(st.integers(2, 6))
    suffix = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=ngram_max))
    segment = NgramSegment.build(
        array("I", tokens), start=start, stop=stop, ngram_min=ngram_min, ngram_max=ngram_max
    )
    assert segment.longest(suffix) == naive_longest(
        tokens, suffix, start=start, stop=stop, ngram_min=ngram_min, ngram_max=ngram_max
    )


def test_an_ngram_may_begin_before_the_segment():
    segment = NgramSegment.build(
        array("I", (7, 8, 9, 1)), start=2, stop=3, ngram_min=2, ngram_max=3
    )
    assert segment.longest((7, 8, 9)) == (3, 2)


def test_a_token_outside_the_segment_is_not_found():
    segment = NgramSegment.build(array("I", (7, 8)), start=0, stop=1, ngram_min=1, ngram_max=2)
    assert segment.longest((8,)) is None
