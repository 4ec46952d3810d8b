from types import SimpleNamespace

from engine.errors import EvalFailed
from engine.outcome import PrefillOutcome, SeqId, StepOutcome
from engine.params import SequenceParams
from engine.prefill import PrefillPacer
from engine.prompt_cache.cache import PromptCache
from engine.scheduler.drafters import Drafters
from engine.scheduler.entry import RowPool
from engine.scheduler.job import Job
from engine.scheduler.prefilling import Prefiller
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.stats import Counters
from engine.scheduler.tick import Grant

SEQ = SeqId(3)


class FakeEngine:
    """Notes the chunks; the device takes a second each."""

    def __init__(self, clock) -> None:
        self.chunks: list[tuple[int, int]] = []
        self.joined: list[SeqId] = []
        self.error: EvalFailed | None = None
        self.piece_s = 1.0
        self._clock = clock
        self.choice = SimpleNamespace(kind="dense")

    def prefill(self, seq, chunk):
        self._clock.now_s += self.piece_s
        self.chunks.append((chunk.start, chunk.stop))
        first = StepOutcome(seq, 7) if chunk.is_last else None
        if self.error is not None:
            first = StepOutcome(seq, None, error=self.error)
        return PrefillOutcome(seq, chunk.stop, 0, first)

    def join(self, seq):
        self.joined.append(seq)


class Clock(SimpleNamespace):
    def __call__(self) -> float:
        return self.now_s


def prefiller(engine, pacer, counters, clock) -> Prefiller:
    drafters = Drafters(engine, SchedulerSettings(), clock)
    return Prefiller(
        engine, RowPool(engine, PromptCache(engine, None)), drafters, pacer, counters, clock
    )


def reading(prompt: int, *, cached: int = 0):
    clock = Clock(now_s=0.0)
    engine, counters = FakeEngine(clock), Counters()
    params = SequenceParams(tuple([1] * prompt))
    request = ScheduledRequest("a", params)
    job = Job(request, params, bound=999, growth_tokens=None, now_s=0.0)
    job.assign_slot(SEQ, 0, cached_tokens=cached, is_long=False)
    return prefiller(engine, PrefillPacer(8), counters, clock), job, engine, counters


def test_a_grant_is_one_chunk():
    reader, job, engine, counters = reading(30)
    assert reader.read(job, Grant("a", 8)) is None
    assert engine.chunks == [(0, 8)]
    assert (job.done_tokens, job.prefill_left) == (8, 22)
    assert (counters.prefill_chunks, counters.prefill_tokens) == (1, 8)


def test_a_prompt_read_to_its_last_token_joins_the_next_step():
    reader, job, engine, _ = reading(9)
    reader.read(job, Grant("a", 8))
    assert engine.chunks == [(0, 8)]
    assert engine.joined == [SEQ]
    assert job.prefill_left == 0


def test_a_prompt_that_fits_a_grant_joins_at_once():
    reader, job, engine, _ = reading(6)
    reader.read(job, Grant("a", 6))
    assert (engine.chunks, engine.joined) == ([(0, 5)], [SEQ])


def test_a_prompt_of_one_token_needs_no_forward_of_its_own():
    reader, job, engine, counters = reading(1)
    reader.read(job, Grant("a", 1))
    assert (engine.chunks, engine.joined) == ([], [SEQ])
    assert counters.prefill_chunks == 0


def test_a_grant_that_draws_ends_with_the_first_token():
    reader, job, engine, counters = reading(6)
    drawn = reader.read(job, Grant("a", 6, draws=True))
    assert drawn is not None
    assert drawn.token == 7
    assert (engine.chunks, engine.joined) == ([(0, 5), (5, 6)], [])
    assert job.prefill_left == 0
    assert (counters.prefill_chunks, counters.prefill_tokens) == (2, 6)
    job.note(drawn, 2.0)
    assert job.prefill_s == 2.0, "both forwards, each once"


def test_a_grant_that_ends_before_the_prompt_draws_nothing():
    reader, job, engine, _ = reading(30)
    assert reader.read(job, Grant("a", 8, draws=True)) is None
    assert (engine.chunks, job.prefill_left) == ([(0, 8)], 22)


def test_what_was_cached_is_not_read():
    reader, job, engine, _ = reading(20, cached=19)
    reader.read(job, Grant("a", 1))
    assert (engine.chunks, engine.joined) == ([], [SEQ])
    reader, job, engine, _ = reading(20, cached=10)
    reader.read(job, Grant("a", 8))
    assert engine.chunks == [(10, 18)]


def test_a_chunk_that_fails_joins_nothing():
    reader, job, engine, _ = reading(6)
    engine.error = EvalFailed("gone")
    ended = reader.read(job, Grant("a", 6))
    assert ended is not None
    assert ended.error is engine.error
    assert engine.joined == []


def test_the_time_of_reading_is_the_request_s_up_to_its_first_token():
    reader, job, _, _ = reading(30)
    reader.read(job, Grant("a", 8))
    reader.read(job, Grant("a", 8))
    assert job.prefill_s == 2.0
    job.note(StepOutcome(SEQ, 5), 9.0)
    before = job.prefill_s
    reader.read(job, Grant("a", 8))
    assert job.prefill_s == before


def test_chunks_that_were_slow_make_the_next_ones_shorter():
    clock = Clock(now_s=0.0)
    params = SequenceParams(tuple([1] * 200))
    job = Job(ScheduledRequest("a", params), params, bound=999, growth_tokens=None, now_s=0.0)
    job.assign_slot(SEQ, 0, cached_tokens=0, is_long=False)
    engine = FakeEngine(clock)
    engine.piece_s = 2.0
    reader = prefiller(engine, PrefillPacer(first_tokens=128), Counters(), clock)
    reader.read(job, Grant("a", 128))
    assert reader.pacer.chunk_tokens == 32  # 64 tokens a second, half a second each
