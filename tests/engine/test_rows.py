from engine.finish import FinishRules
from engine.outcome import SeqId
from engine.params import LoopRule, SamplingParams, SequenceParams
from engine.rows import Phase, Row
from engine.sampling.row_sampler import RowSampler


def row_of(sampling: SamplingParams | None = None, hooks: object = None) -> Row:
    sampling = SamplingParams() if sampling is None else sampling
    params = SequenceParams((1, 2, 3), sampling)
    sampler = RowSampler(
        sampling, seed=0, choice=0, vocab_size=16, eos_ids=frozenset(), prompt_tokens=3
    )
    rules = FinishRules(frozenset(), None, None, LoopRule())
    return Row(SeqId(1), params, rules, sampler, None, hooks)


def test_a_new_row_holds_its_prompt_and_nothing_else():
    row = row_of()
    assert (row.ids, row.prompt_tokens, row.written, row.generated) == ([1, 2, 3], 3, 0, [])
    assert row.phase is Phase.PREFILL
    assert row.in_flight == []
    assert row.slot < 0


def test_the_answer_is_a_copy():
    row = row_of()
    row.ids.append(4)
    row.generated.append(9)
    assert (row.written, row.generated) == (1, [4])


def test_hooks_dry_and_mirostat_need_the_token_on_the_host():
    assert not row_of().needs_host
    assert not row_of(SamplingParams(temperature=1, repetition_penalty=1.2)).needs_host
    assert row_of(hooks=object()).needs_host
    assert row_of(SamplingParams(dry_multiplier=1)).needs_host
    assert row_of(SamplingParams(mirostat=2)).needs_host


def test_a_row_says_where_it_stands():
    assert repr(row_of()) == "Row(1, PREFILL, prompt=3, written=0, in_flight=0)"
