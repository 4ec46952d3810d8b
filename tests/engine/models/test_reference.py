import mlx.core as mx

from engine.models.reference import reference_logits, reference_tokens
from tests.engine.mlx_lm_batch import mlx_lm_batch
from tests.engine.rigs import CycleModel, tiny_model

PROMPT = tuple(range(5, 25))


def test_the_reference_follows_a_known_cycle():
    assert reference_tokens(CycleModel(), (3, 4), max_tokens=5) == [5, 6, 7, 8, 9]


def test_an_end_token_is_left_out():
    tokens = reference_tokens(CycleModel(), (3, 4), max_tokens=9, eos_ids=frozenset({7}))
    assert tokens == [5, 6]


def test_no_token_asked_is_no_token():
    assert reference_tokens(CycleModel(), (3, 4), max_tokens=0) == []


def test_logits_and_tokens_are_of_one_walk():
    model = tiny_model("llama")
    tokens, logits = reference_logits(model, PROMPT, 12, chunk_tokens=8)
    assert tokens == reference_tokens(model, PROMPT, max_tokens=12, chunk_tokens=8)
    assert [int(mx.argmax(row).item()) for row in logits] == tokens


def test_a_batch_of_mlx_lm_is_each_prompt_alone():
    model = tiny_model("llama")
    prompts = [PROMPT[:3], PROMPT, (9,)]
    alone = [reference_tokens(model, prompt, max_tokens=7) for prompt in prompts]
    assert mlx_lm_batch(model, prompts, max_tokens=7) == alone
