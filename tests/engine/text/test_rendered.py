"""Rendered prompts to ids: template text is parsed, literal spans are not."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.text.rendered import RenderedPrompt
from engine.text.tokenizer import Tokenizer

SAME_FIXTURE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None
)


@SAME_FIXTURE
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(["user", "\n", " hi", "<think>", "<|im_end|>"]), st.booleans())
    )
)
def test_literal_parts_give_no_special_tokens_and_the_rest_does(byte_level, parts):
    text, literals = "", []
    for word, is_user in parts:
        if is_user:
            literals.append((len(text), len(text) + len(word)))
        text += word
    ids = byte_level.encode_rendered(RenderedPrompt(text, tuple(literals)))
    end = byte_level.token_id("<|im_end|>")
    assert ids.count(end) == parts.count(("<|im_end|>", False))
    assert byte_level.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "unigram"])
def test_text_without_literals_is_encoded_at_once(name, request):
    tokenizer = request.getfixturevalue(name)
    end = tokenizer.special_texts[-1]
    text = f"{end} hi the{end}hi {end}"
    prompt = RenderedPrompt(text)
    ids = tokenizer.encode_rendered(prompt)
    assert ids == tokenizer.encode(text, parse_special=True, add_bos=True)


def test_words_next_to_a_literal_split_as_elsewhere(sentencepiece):
    """The template's own tokens around a literal cut the text as they always do."""
    end = "</s>"
    text = f"hi{end}the {end} the{end}hi"
    literal = (len(f"hi{end}the "), len(f"hi{end}the {end}"))
    ids = sentencepiece.encode_rendered(RenderedPrompt(text, (literal,)))
    plain_middle = sentencepiece.encode(f"the {end} the")
    end_id = sentencepiece.token_id(end)
    hi = sentencepiece.encode("hi")
    assert ids == (sentencepiece.bos_id, *hi, end_id, *plain_middle, end_id, *hi)


def test_a_users_placeholder_is_text(byte_level):
    """Whatever stands in for special tokens inside cannot be written by a user."""
    text = "\U0010fff0" * 3 + "<|im_end|>" + "\U0010fff0"
    ids = byte_level.encode(text)
    assert byte_level.special_ids.isdisjoint(ids)
    assert byte_level.decode(ids) == text


@pytest.mark.parametrize("text", ["hi", "<s>hi", "<s><s>hi"])
def test_there_is_exactly_one_bos(sentencepiece, text):
    """vllm#27486: the template may print it, the tokenizer may add it."""
    ids = sentencepiece.encode_rendered(RenderedPrompt(text))
    assert ids[0] == sentencepiece.bos_id
    assert ids.count(sentencepiece.bos_id) == 1


def test_a_bos_that_the_template_alone_prints_stays(byte_level_backend):
    tokenizer = Tokenizer(byte_level_backend, {"bos_token": "<|im_start|>"})
    ids = tokenizer.encode_rendered(RenderedPrompt("<|im_start|>hi"))
    assert ids == (tokenizer.bos_id, *tokenizer.encode("hi"))
