from engine.errors import EvalFailed
from engine.events import Delta
from engine.finish import FinishCause
from engine.outcome import SeqId, StepOutcome, TokenLogprob, TokenLogprobs
from engine.params import SamplingParams, SequenceParams
from engine.rows import PreemptedRow
from engine.sampling.row_sampler import SamplerSnapshot
from engine.scheduler.job import Job
from engine.scheduler.queue import Priority
from engine.scheduler.request import ScheduledRequest

SEQ = SeqId(4)


def job(*, max_tokens: int | None = 10, growth: int | None = None, **kw) -> Job:
    params = SequenceParams((1, 2, 3), max_tokens=max_tokens, sampling=SamplingParams(seed=5))
    request = ScheduledRequest("a", params, priority=Priority.LOW, **kw)
    return Job(request, params, bound=100, growth_tokens=growth, now_s=1.0)


def wrote(token: int, text: str = "", **kw) -> StepOutcome:
    return StepOutcome(SEQ, token, text, **kw)


def test_while_it_waits_admission_sees_its_prompt_and_its_room():
    waiting = job().waiting_state()
    assert (waiting.id, waiting.priority) == ("a", Priority.LOW)
    assert (waiting.prefill_tokens, waiting.room_tokens) == (3, 13)
    assert job(max_tokens=None).waiting_state().room_tokens == 100


def test_with_a_slot_a_plan_sees_how_far_it_is():
    one = job()
    one.assign_slot(SEQ, 2, cached_tokens=1, is_long=True)
    state = one.row_state(wants_step=False)
    assert (state.seq, state.prefill_left, state.is_long) == (SEQ, 2, True)
    one.decodes_since(2.0)
    one.note(wrote(7), 3.0)
    state = one.row_state(wants_step=True)
    assert (state.prefill_left, state.tokens, state.can_step) == (0, 4, True)


def test_a_held_row_takes_no_step():
    one = job()
    one.assign_slot(SEQ, 0, cached_tokens=0, is_long=False)
    one.is_paused = True
    assert not one.row_state(wants_step=True).can_step


def test_a_row_with_hooks_is_never_preempted():
    hooked = job(hooks=object())
    hooked.assign_slot(SEQ, 0, cached_tokens=0, is_long=False)
    assert not hooked.row_state(wants_step=True).can_be_preempted
    plain = job()
    plain.assign_slot(SEQ, 0, cached_tokens=0, is_long=False)
    assert plain.row_state(wants_step=True).can_be_preempted


def test_a_delta_holds_all_that_was_written_since_the_last_one():
    one = job()
    chosen = TokenLogprobs(TokenLogprob(7, -1.0), ())
    one.note(wrote(7, "x", logprobs=chosen), 2.0)
    one.note(wrote(8), 3.0)
    assert one.take_delta() == Delta("a", "x", (7, 8), (chosen,), 2)
    assert one.take_delta() is None


def test_an_end_token_is_no_part_of_the_answer_but_its_text_is():
    one = job()
    one.note(wrote(7), 2.0)
    one.take_delta()
    one.note(wrote(9, "tail", finish=FinishCause.EOS), 3.0)
    assert one.take_delta() == Delta("a", "tail", (), (), 1)
    assert one.usage().completion_tokens == 1


def test_a_failed_step_wrote_nothing():
    one = job()
    one.note(StepOutcome(SEQ, None, error=EvalFailed("gone")), 2.0)
    assert one.take_delta() is None
    assert one.first_s is None


def test_times_count_from_submit_start_and_first_token():
    one = job()
    one.assign_slot(SEQ, 0, cached_tokens=1, is_long=False)
    one.start(3.0)
    one.prefill_s = 0.5
    one.decodes_since(4.0)
    one.note(wrote(7), 5.0)
    one.note(wrote(8), 9.0)
    done = one.done(FinishCause.LENGTH)
    times = done.timings
    assert done.queue_s == 2.0
    assert (times.prompt_s, times.ttft_s, times.predicted_s) == (1.5, 4.0, 4.0)
    assert (times.prompt_n, times.cache_n, times.predicted_n) == (2, 1, 2)
    assert (done.seed, done.usage.cached_tokens) == (5, 1)


def test_who_was_preempted_reads_prompt_and_answer_again():
    one = job(growth=256)
    one.assign_slot(SEQ, 1, cached_tokens=2, is_long=False)
    one.start(1.0)
    one.decodes_since(2.0)
    one.note(wrote(7), 3.0)
    one.requeue(PreemptedRow(one.params, (1, 2, 3, 7), SamplerSnapshot(5, 0.0), None, None))
    waiting = one.waiting_state()
    assert (waiting.prefill_tokens, waiting.room_tokens) == (4, 13)
    one.assign_slot(SeqId(9), 0, cached_tokens=0, is_long=False)
    state = one.row_state(wants_step=False)
    assert (state.seq, state.prefill_left) == (9, 4)
    assert one.usage().cached_tokens == 2


def test_slot_stats_say_what_it_is_doing():
    one = job()
    one.assign_slot(SEQ, 2, cached_tokens=1, is_long=False)
    stats = one.slot_stats()
    assert (stats.slot, stats.prompt_tokens, stats.prompt_done_tokens) == (2, 3, 1)
    assert (stats.max_tokens, stats.is_paused) == (10, False)
