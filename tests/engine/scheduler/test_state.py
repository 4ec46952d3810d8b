from engine.scheduler.state import Limits, TickState


def test_prompts_of_few_pieces_are_short():
    assert TickState(Limits(short_pieces=3), (), chunk_tokens=100).short_tokens == 300


def test_without_pieces_no_prompt_is_long():
    assert TickState(Limits(), (), chunk_tokens=0).short_tokens is None
