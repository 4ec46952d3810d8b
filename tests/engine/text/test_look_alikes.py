"""User text that looks like special tokens, through a template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidParams
from engine.text.look_alikes import CUT_CHARACTERS, LookAlikes, free_characters

CUT = CUT_CHARACTERS[0]
NAMES = ["<s>", "</s>", "<|im_end|>", "|im_end|", "<s>x"]


@given(st.lists(st.sampled_from([*NAMES, "<", "s", ">", " ", "x", "|im_", "end|>"]), max_size=12))
def test_cutting_leaves_no_name_whole_and_restoring_finds_each(words):
    text = "".join(words)
    look_alikes = LookAlikes(NAMES)
    cut = look_alikes.cut(text, CUT)
    assert not any(name in cut for name in NAMES)
    clean, spans = look_alikes.restore(cut, CUT)
    assert clean == text
    covered = {place for start, stop in spans for place in range(start, stop)}
    for name in NAMES:
        start = text.find(name)
        while start >= 0:
            assert covered.issuperset(range(start, start + len(name)))
            start = text.find(name, start + 1)
    assert all(any(name in text[start:stop] for name in NAMES) for start, stop in spans)


@pytest.mark.parametrize("text", ["", "plain text", "a < b", "<b>bold</b>", "<|im_start|>"])
def test_text_without_a_name_is_not_cut(text):
    assert LookAlikes(["<|im_end|>"]).cut(text, CUT) == text


def test_half_a_name_at_an_edge_is_cut_too():
    """The template's own text may complete it."""
    look_alikes = LookAlikes(["<|im_end|>"])
    begin = look_alikes.cut("word <|im_", CUT)
    rest = look_alikes.cut("end|> word", CUT)
    assert look_alikes.restore(begin + rest, CUT) == ("word <|im_end|> word", ((5, 15),))


def test_white_space_at_the_edges_can_still_be_trimmed():
    cut = LookAlikes(["</s>"]).cut("\n </s> \n", CUT)
    assert LookAlikes(["</s>"]).restore(cut.strip(), CUT) == ("</s>", ((0, 4),))


def test_the_templates_own_tokens_are_no_literals():
    look_alikes = LookAlikes(["<|im_end|>"])
    text = look_alikes.cut("<|im_end|>", CUT) + "<|im_end|>"
    assert look_alikes.restore(text, CUT) == ("<|im_end|><|im_end|>", ((0, 10),))


def test_names_are_found_in_every_string():
    cut = LookAlikes(["<s>"]).cut({"a": ["<s>", 3, None], "<s>": {"b": "<s>"}}, CUT)
    assert cut == {"a": [f"<{CUT}s>", 3, None], f"<{CUT}s>": {"b": f"<{CUT}s>"}}


def test_letters_that_the_messages_use_are_not_taken():
    used = [{"a": [CUT_CHARACTERS[0]]}, {CUT_CHARACTERS[1]: "x"}]
    assert free_characters(2, used) == list(CUT_CHARACTERS[2:4])


def test_messages_that_use_every_letter_are_refused():
    with pytest.raises(InvalidParams, match="messages"):
        free_characters(1, ["".join(CUT_CHARACTERS)])
