from engine.scheduler.state import Limits, TickState


def test_prompts_of_few_chunks_are_short():
    limits = Limits(short_chunks=3, short_tokens=0)
    assert TickState(limits, (), chunk_tokens=100).short_tokens == 300


def test_common_prompts_are_short_however_small_the_chunks_are():
    """Pieces shrink with the machine's speed; a prompt of 16 small ones must not be long."""
    limits = Limits(short_chunks=4, short_tokens=1024)
    assert TickState(limits, (), chunk_tokens=16).short_tokens == 1024
    assert TickState(limits, (), chunk_tokens=512).short_tokens == 2048


def test_without_chunks_no_prompt_is_long():
    assert TickState(Limits(), (), chunk_tokens=0).short_tokens is None
