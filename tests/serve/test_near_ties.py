"""The judge of answers on the starter: what it lets pass, and what it does not."""

import pytest

from tests.serve.near_ties import Spoken, assert_same, assert_text_same, spoken

ALONE = Spoken("one two", [b"one", b" two"], [3.0, 0.0004])


def test_an_answer_is_read_from_a_choice():
    tops = [{"logprob": -0.1}, {"logprob": -2.1}]
    place = {"bytes": list(b"one"), "top_logprobs": tops}
    choice = {"message": {"content": "one"}, "logprobs": {"content": [place]}}
    assert spoken(choice) == Spoken("one", [b"one"], [2.0])


@pytest.mark.parametrize("tokens", [[b"one", b" two"], [b"one", b" too"]], ids=str)
def test_the_same_and_a_near_tie_pass(tokens):
    text = b"".join(tokens).decode()
    assert_same(Spoken(text, tokens, [3.0, 3.0]), ALONE)
    assert_text_same(text, ALONE)


@pytest.mark.parametrize("tokens", [[b"two", b" two"], [b"one"]], ids=str)
def test_another_answer_and_a_shorter_one_do_not(tokens):
    with pytest.raises(AssertionError):
        assert_same(Spoken(b"".join(tokens).decode(), tokens, [0.0, 0.0]), ALONE)


@pytest.mark.parametrize("text", ["two two", "one two three"])
def test_another_text_and_a_longer_one_do_not(text):
    with pytest.raises(AssertionError):
        assert_text_same(text, ALONE)
