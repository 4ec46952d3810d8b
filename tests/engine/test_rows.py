import math

import pytest

from engine.errors import ContextOverflow, InvalidParams
from engine.finish import FinishRules
from engine.outcome import SeqId
from engine.params import LoopRule, SamplingParams, SequenceParams
from engine.rows import Phase, Row, check_ids, new_row
from engine.sampling.row_sampler import RowSampler
from tests.engine.inside import storage_of
from tests.engine.rigs import Watched, byte_tokenizer, cycle_engine, loaded


def record(sampling: SamplingParams | None = None, hooks: object = None) -> Row:
    sampling = SamplingParams() if sampling is None else sampling
    params = SequenceParams((1, 2, 3), sampling)
    sampler = RowSampler(
        sampling, seed=0, choice=0, vocab_size=16, eos_ids=frozenset(), prompt_tokens=3
    )
    rules = FinishRules(frozenset(), None, None, LoopRule())
    return Row(SeqId(1), params, rules, sampler, None, hooks)


def test_a_new_row_holds_its_prompt_and_nothing_else():
    row = record()
    assert (row.ids, row.prompt_tokens, row.written, row.generated) == ([1, 2, 3], 3, 0, [])
    assert row.phase is Phase.PREFILL
    assert row.in_flight == []
    assert row.slot < 0


def test_the_answer_is_a_copy():
    row = record()
    row.ids.append(4)
    row.generated.append(9)
    assert (row.written, row.generated) == (1, [4])


def test_hooks_dry_and_mirostat_need_the_token_on_the_host():
    assert not record().needs_host
    assert not record(SamplingParams(temperature=1, repetition_penalty=1.2)).needs_host
    assert record(hooks=object()).needs_host
    assert record(SamplingParams(dry_multiplier=1)).needs_host
    assert record(SamplingParams(mirostat=2)).needs_host


def test_a_row_says_where_it_stands():
    assert repr(record()) == "Row(1, PREFILL, prompt=3, written=0, in_flight=0)"


VOCAB = 16


def opened(params: SequenceParams, *, eos=(9,), context: int = 64, tokenizer=None):
    return new_row(
        SeqId(3),
        params,
        loaded(None, "llama", vocab=VOCAB, eos=eos, tokenizer=tokenizer),
        context_tokens=context,
        text=None,
        hooks=None,
    )


OUTSIDE = [
    ({"prompt_ids": (1, VOCAB)}, "prompt"),
    ({"prompt_ids": (-1,)}, "prompt"),
    ({"prompt_ids": (10**7,)}, "prompt"),
    ({"sampling": SamplingParams(logit_bias={191222: -100.0})}, "logit_bias"),
    ({"sampling": SamplingParams(logit_bias={VOCAB: 1.0})}, "logit_bias"),
    ({"stop_ids": frozenset({VOCAB})}, "stop_ids"),
    ({"stop_ids": frozenset({-1})}, "stop_ids"),
]


@pytest.mark.parametrize(("asked", "field"), OUTSIDE)
def test_an_id_outside_the_vocabulary_is_refused_by_name_before_any_forward(asked, field):
    # vllm#16529, sglang#7670; on MLX's CPU backend such ids read and write out of bounds.
    engine = cycle_engine(vocab=VOCAB)
    watched = Watched(engine)
    params = SequenceParams(**{"prompt_ids": (1, 2), **asked})
    with pytest.raises(InvalidParams) as refused:
        engine.open(params)
    assert refused.value.field == field
    assert "16 tokens" in str(refused.value)
    assert watched.calls == 0
    assert storage_of(engine).arrays() == []
    with pytest.raises(InvalidParams):
        check_ids(params, VOCAB)


def test_the_largest_id_is_allowed():
    check_ids(SequenceParams((VOCAB - 1,), stop_ids=frozenset({VOCAB - 1})), VOCAB)


@pytest.mark.parametrize(("asked", "bound"), [(None, 64), (20, 20), (1000, 64)])
def test_the_smaller_context_bounds_the_row(asked: int | None, bound: int):
    row = opened(SequenceParams((1,), context_tokens=asked))
    assert row.rules.context_tokens == bound


@pytest.mark.parametrize("length", [8, 9])
def test_a_prompt_that_leaves_no_room_is_refused(length: int):
    with pytest.raises(ContextOverflow):
        opened(SequenceParams((1,) * length), context=8)
    assert opened(SequenceParams((1,) * 7), context=8).prompt_tokens == 7


def test_end_tokens_are_the_models_and_the_requests():
    row = opened(SequenceParams((1,), stop_ids=frozenset({4})))
    assert row.rules.eos_ids == {4, 9}


def test_ignored_end_tokens_end_nothing_and_are_never_drawn():
    row = opened(SequenceParams((1,), stop_ids=frozenset({4}), ignore_eos=True))
    assert row.rules.eos_ids == frozenset()
    ids, values = row.sampler.adjustment(suppressed=False)
    assert sorted(ids.tolist()) == [4, 9]
    assert set(values.tolist()) == {-math.inf}


def test_a_missing_seed_is_drawn_and_a_given_one_kept():
    assert opened(SequenceParams((1,))).params.sampling.seed is not None
    row = opened(SequenceParams((1,), SamplingParams(seed=0)))
    assert row.params.sampling.seed == row.sampler.seed == 0


def test_dry_gets_its_breakers_as_tokens(tmp_path):
    tokenizer = byte_tokenizer(tmp_path)
    row = opened(SequenceParams((1,), SamplingParams(dry_multiplier=1)), tokenizer=tokenizer)
    assert row.sampler.needs_host
    assert row.sampler.dry is not None
