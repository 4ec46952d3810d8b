import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.prefill import (
    PREFILL_CHUNK_TOKENS,
    SMALLEST_CHUNK_TOKENS,
    PrefillChunk,
    PrefillPacer,
    plan_prefill,
)


def cuts(**plan: int | None) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.stop) for chunk in plan_prefill(**plan)]


@given(
    prompt=st.integers(1, 300),
    cached=st.integers(0, 400),
    chunk=st.integers(0, 80),
    boundary=st.none() | st.integers(-5, 320),
)
def test_chunks_cover_what_is_not_cached_exactly_once(prompt, cached, chunk, boundary):
    chunks = list(
        plan_prefill(
            prompt_tokens=prompt, cached_tokens=cached, chunk_tokens=chunk, boundary=boundary
        )
    )
    covered = [at for chunk in chunks for at in range(chunk.start, chunk.stop)]
    assert covered == list(range(min(cached, prompt - 1), prompt))
    assert all(chunk.tokens == chunk.stop - chunk.start > 0 for chunk in chunks)
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].tokens == 1
    if chunk:
        assert max(chunk.tokens for chunk in chunks) <= chunk
    if boundary is not None and min(cached, prompt - 1) < boundary < prompt:
        assert boundary in {chunk.start for chunk in chunks} | {prompt}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        pytest.param({"prompt_tokens": 1}, [(0, 1)], id="a prompt of one token is one chunk"),
        pytest.param(
            {"prompt_tokens": 10, "chunk_tokens": 4},
            [(0, 4), (4, 8), (8, 9), (9, 10)],
            id="the last token is a forward of its own",
        ),
        pytest.param(
            {"prompt_tokens": 9, "chunk_tokens": 4},
            [(0, 4), (4, 8), (8, 9)],
            id="no empty chunk before the last token",
        ),
        pytest.param(
            {"prompt_tokens": 10, "chunk_tokens": 0}, [(0, 9), (9, 10)], id="chunk 0 is one chunk"
        ),
        pytest.param(
            {"prompt_tokens": 10, "cached_tokens": 10},
            [(9, 10)],
            id="a prompt that is cached whole leaves one token",
        ),
        pytest.param(
            {"prompt_tokens": 10, "cached_tokens": 25}, [(9, 10)], id="more cached than asked"
        ),
        pytest.param(
            {"prompt_tokens": 12, "cached_tokens": 6, "chunk_tokens": 8},
            [(6, 11), (11, 12)],
            id="a suffix that fits in one chunk after the cached part",
        ),
        pytest.param(
            {"prompt_tokens": 20, "chunk_tokens": 8, "boundary": 10},
            [(0, 8), (8, 10), (10, 18), (18, 19), (19, 20)],
            id="counting starts again at the boundary",
        ),
        pytest.param(
            {"prompt_tokens": 20, "cached_tokens": 10, "chunk_tokens": 16, "boundary": 10},
            [(10, 19), (19, 20)],
            id="a boundary that is cached is nothing to stop at",
        ),
        pytest.param(
            {"prompt_tokens": 6, "chunk_tokens": 16, "boundary": 5},
            [(0, 5), (5, 6)],
            id="a boundary before the last token is where the chunks end anyway",
        ),
    ],
)
def test_how_a_prompt_is_cut(plan: dict[str, int], expected: list[tuple[int, int]]):
    assert cuts(**plan) == expected


def test_a_chunk_knows_its_size():
    assert PrefillChunk(3, 8, is_last=False).tokens == 5


@pytest.mark.parametrize("size", [0, 64])
def test_a_fixed_size_is_never_changed(size: int):
    pacer = PrefillPacer(size)
    pacer.observe(64, 100.0)
    pacer.observe(64, 100.0, interleaved=True)
    assert (pacer.chunk_tokens, pacer.interleaved_tokens, pacer.interleaved_share) == (
        size,
        size,
        1.0,
    )


def test_an_interleaved_chunk_is_sized_for_a_shorter_time():
    pacer = PrefillPacer()
    assert pacer.interleaved_tokens == 32
    pacer.observe(256, 0.1)  # 2,560 tokens a second
    assert (pacer.chunk_tokens, pacer.interleaved_tokens) == (1024, 256)
    pacer.observe(256, 0.2, interleaved=True)  # small chunks are slower
    assert (pacer.chunk_tokens, pacer.interleaved_tokens) == (1024, 128)
    pacer.observe(1024, 0.4)  # from then on they alone tell their size
    assert pacer.interleaved_tokens == 128


def test_what_an_interleaved_chunk_takes_is_reported_as_a_part_of_a_whole_one():
    pacer = PrefillPacer()
    assert pacer.interleaved_share == pytest.approx(0.2)  # as it is meant to be
    pacer.observe(32, 0.125, interleaved=True)
    assert pacer.interleaved_share == pytest.approx(0.25)  # of half a second
    pacer.observe(256, 0.8)
    assert pacer.interleaved_share == pytest.approx(0.25)
    fast = PrefillPacer(first_tokens=2048)
    fast.observe(2048, 0.2)  # a whole chunk is as large as it may be, and takes less
    fast.observe(1024, 0.1, interleaved=True)
    assert fast.interleaved_share == pytest.approx(0.5)


@pytest.mark.parametrize(("elapsed", "size"), [(0.13, 32), (0.14, 16), (0.05, 32), (0.04, 64)])
def test_an_interleaved_chunk_is_never_much_too_long(elapsed: float, size: int):
    pacer = PrefillPacer()
    pacer.observe(32, elapsed, interleaved=True)
    assert pacer.interleaved_tokens == size


def test_an_interleaved_chunk_takes_no_more_than_a_whole_one():
    pacer = PrefillPacer()
    pacer.observe(256, 0.9)
    pacer.observe(32, 60, interleaved=True)
    assert (pacer.interleaved_tokens, pacer.interleaved_share) == (SMALLEST_CHUNK_TOKENS, 1.0)


def test_a_fixed_size_of_zero_is_one_chunk_a_prompt():
    pacer = PrefillPacer(0)
    pacer.observe(5000, 0.001)
    assert pacer.chunk_tokens == 0


def test_a_fast_machine_gets_the_largest_size():
    pacer = PrefillPacer()
    pacer.observe(256, 0.001)
    assert pacer.chunk_tokens == PREFILL_CHUNK_TOKENS


def test_a_slow_machine_gets_the_size_that_half_a_second_affords():
    pacer = PrefillPacer()
    pacer.observe(256, 4.0)  # 64 tokens a second
    assert pacer.chunk_tokens == 32


def test_no_machine_is_so_slow_that_chunks_vanish():
    pacer = PrefillPacer()
    pacer.observe(256, 1e6)
    assert pacer.chunk_tokens == SMALLEST_CHUNK_TOKENS


@pytest.mark.parametrize("rate", [300, 512, 1000])
def test_a_speed_within_a_factor_of_two_changes_nothing(rate: int):
    pacer = PrefillPacer(first_tokens=256)
    pacer.observe(256, 256 / rate)
    assert pacer.chunk_tokens == 256


@pytest.mark.parametrize(("tokens", "elapsed"), [(100, 50.0), (256, 0.0), (256, -1.0)])
def test_short_chunks_and_stopped_clocks_teach_nothing(tokens: int, elapsed: float):
    pacer = PrefillPacer(first_tokens=256)
    pacer.observe(tokens, elapsed)
    assert pacer.chunk_tokens == 256


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-6, 1e4), st.booleans()), max_size=8))
def test_sizes_are_powers_of_two_between_the_bounds(chunks):
    pacer = PrefillPacer()
    for tokens, elapsed, interleaved in chunks:
        pacer.observe(tokens, elapsed, interleaved=interleaved)
        assert 0 < pacer.interleaved_share <= 1
        for size in (pacer.chunk_tokens, pacer.interleaved_tokens):
            assert size.bit_count() == 1
            assert SMALLEST_CHUNK_TOKENS <= size <= PREFILL_CHUNK_TOKENS
