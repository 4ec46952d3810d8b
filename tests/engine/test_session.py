import itertools
from collections.abc import Iterator

import pytest

from engine import guard
from engine.errors import ContextOverflow, EvalFailed, InvalidParams
from engine.events import PrefillProgress, Started
from engine.finish import FinishCause
from engine.outcome import Usage
from engine.params import LoopRule, SamplingParams, SequenceParams
from engine.prefill import PrefillPacer
from engine.session import ID, Session, SessionEvent
from tests.engine.inside import inner_model, put_model, rows_of, storage_of
from tests.engine.rigs import Watched, cycle_engine, tiny_engine
from tests.engine.session_rigs import deltas_of, progress_of, said

A = ord("a")


@pytest.fixture
def engine(tokenizer):
    """Writes the alphabet: after ``a`` comes ``b``, and so on through all bytes."""
    return cycle_engine(vocab=259, tokenizer=tokenizer)


def ask(engine, text: str = "a", *, stops=(), session: Session | None = None, **params):
    """All events of one answer."""
    session = Session(engine, pacer=PrefillPacer(4)) if session is None else session
    return list(session.generate(SequenceParams(tuple(text.encode()), **params), stops=stops))


# -- events and text


def test_an_answer_is_progress_then_text_then_the_end(engine):
    events = ask(engine, "uvwxyzabcd", max_tokens=3)
    assert isinstance(events[0], Started)
    assert events[1:4] == [PrefillProgress(ID, done, 10) for done in (4, 8, 9)]
    assert deltas_of(events[4:7]) == [("e", 1), ("f", 2), ("g", 3)]
    answer = said(events)
    assert (answer.text, answer.finish) == ("efg", FinishCause.LENGTH)
    assert answer.usage == Usage(prompt_tokens=10, completion_tokens=3)
    assert answer.stop_match is None


def test_a_prompt_of_one_token_has_no_progress_to_tell(engine):
    assert deltas_of(ask(engine, max_tokens=1)[1:2]) == [("b", 1)]


def test_pieces_follow_the_measured_speed(engine):
    ticks = iter(range(10**6))
    # Each reading of the clock is a second later: 4 tokens a second are 16 a piece at least.
    session = Session(engine, pacer=PrefillPacer(None, first_tokens=64), clock=lambda: next(ticks))
    events = ask(engine, "a" * 200, session=session, max_tokens=1)
    steps = progress_of(events)
    assert steps[0] == 64
    assert steps[-1] == 199


def test_an_end_token_ends_the_answer_and_is_not_in_it(engine):
    answer = said(ask(engine, stop_ids=frozenset({A + 4})))
    assert (answer.text, answer.finish) == ("bcd", FinishCause.EOS)
    assert answer.usage.completion_tokens == 3


def test_an_end_token_at_once_is_an_empty_answer(engine):
    events = ask(engine, stop_ids=frozenset({A + 1}))
    answer = said(events)
    assert (answer.text, answer.finish) == ("", FinishCause.EOS)
    assert answer.usage.completion_tokens == 0
    assert len(events) == 2, "its start and its end"


@pytest.mark.parametrize(
    ("stops", "text", "match"),
    [
        pytest.param(["ef"], "bcd", "ef", id="across two tokens"),
        pytest.param(["efgh"], "bcd", "efgh", id="across four tokens"),
        pytest.param(["e"], "bcd", "e", id="one token"),
        pytest.param(["b"], "", "b", id="the first token"),
        pytest.param(["gh", "ef"], "bcd", "ef", id="the one that comes first"),
        pytest.param(["ez", "ey", "fg"], "bcde", "fg", id="after a beginning that was none"),
        pytest.param(["", "ef"], "bcd", "ef", id="empty ones are none"),
    ],
)
def test_a_stop_string_ends_the_answer_and_is_never_sent(engine, stops, text, match):
    # mlx-knife#68, sglang#11446, llama.cpp#13780
    answer = said(ask(engine, stops=stops, max_tokens=20))
    assert (answer.text, answer.finish, answer.stop_match) == (
        text,
        FinishCause.STOP_SEQUENCE,
        match,
    )


def test_a_stop_string_cuts_off_exactly_the_append_in_flight(engine, monkeypatch):
    cuts = []
    rewind = storage_of(engine).rewind

    def noted(slot: int, tokens: int) -> None:
        rewind(slot, tokens)
        cuts.append((tokens, storage_of(engine).length(slot)))

    monkeypatch.setattr(storage_of(engine), "rewind", noted)
    ask(engine, stops=["ef"], max_tokens=20)
    # The prompt and the answer b to f, but for the token that was never fed.
    assert cuts == [(1, 1 + 5 - 1)]


def test_a_stop_string_on_the_last_allowed_token_is_a_stop(engine):
    answer = said(ask(engine, stops=["cd"], max_tokens=3))
    assert (answer.text, answer.finish) == ("b", FinishCause.STOP_SEQUENCE)


def test_a_beginning_of_a_stop_string_is_shown_when_the_answer_ends_there(engine):
    answer = said(ask(engine, stops=["cdx"], max_tokens=3))
    assert (answer.text, answer.finish, answer.stop_match) == ("bcd", FinishCause.LENGTH, None)


def test_a_character_that_spans_tokens_comes_whole(tokenizer):
    # mlc-llm#804, llama.cpp#4036: no U+FFFD in any delta.
    engine = cycle_engine(vocab=259, tokenizer=tokenizer)
    head = inner_model(engine).lm_head.weight
    for byte, then in itertools.pairwise("aé😀z".encode()):
        head[:, byte] = 0.0
        head[then, byte] = 8.0
    events = ask(engine, "a", max_tokens=7)
    assert [text for text, _ in deltas_of(events)] == ["é", "😀", "z"]
    cut = ask(engine, "a", max_tokens=4)
    assert said(cut).text == "é\N{REPLACEMENT CHARACTER}"


def test_broken_bytes_are_shown_as_the_tokenizer_shows_them(engine, tokenizer):
    answer = said(list(Session(engine).generate(SequenceParams((0xC2,), max_tokens=2))))
    assert answer.text == tokenizer.decode([0xC3, 0xC4])


def test_special_tokens_are_counted_and_not_shown(engine):
    answer = said(list(Session(engine).generate(SequenceParams((255,), max_tokens=5))))
    assert answer.usage.completion_tokens == 5
    assert answer.text == "\0\1"


# -- budgets and rules


def test_no_token_asked_is_no_forward_and_an_empty_answer(engine):
    # mlx-lm#1689, #1708
    watched = Watched(engine)
    events = ask(engine, max_tokens=0)
    answer = said(events)
    assert len(events) == 2, "its start and its end"
    assert (answer.text, answer.finish) == ("", FinishCause.LENGTH)
    assert answer.usage == Usage(1, 0)
    assert answer.timings.prompt_n == 0
    assert watched.calls == 0


def test_one_token_asked_is_one_token(engine):
    watched = Watched(engine)
    answer = said(ask(engine, max_tokens=1))
    assert (answer.text, answer.usage.completion_tokens) == ("b", 1)
    assert watched.calls == 1


def test_the_context_ends_an_answer_without_a_budget(tokenizer):
    engine = cycle_engine(vocab=259, context=7, tokenizer=tokenizer)
    answer = said(ask(engine, "abc"))
    assert (answer.text, answer.finish) == ("defg", FinishCause.CONTEXT_EXHAUSTED)


def test_a_loop_ends_an_answer(tokenizer):
    engine = cycle_engine(vocab=259, period=2, tokenizer=tokenizer)
    answer = said(ask(engine, loop=LoopRule(max_pattern=4, min_count=3)))
    assert answer.finish is FinishCause.REPETITION_LOOP
    assert answer.usage.completion_tokens == 6
    assert answer.text == "\0\1\0\1\0"


def test_ignored_end_tokens_are_never_drawn(tokenizer):
    engine = cycle_engine(vocab=259, eos=[A + 3], tokenizer=tokenizer)
    assert said(ask(engine)).text == "bc"
    answer = said(ask(engine, ignore_eos=True, max_tokens=6))
    assert answer.finish is FinishCause.LENGTH
    assert "d" not in answer.text


def test_no_end_token_comes_before_the_least_number_of_tokens(tokenizer):
    engine = cycle_engine(vocab=259, eos=[A + 3], tokenizer=tokenizer)
    answer = said(ask(engine, min_tokens=2, max_tokens=9))
    assert (answer.text, answer.finish) == ("bc", FinishCause.EOS)
    answer = said(ask(engine, min_tokens=3, max_tokens=9))
    assert len(answer.text) >= 3
    assert "d" not in answer.text[:3]


def test_stepping_without_a_pipeline_writes_the_same(tokenizer):
    engine = tiny_engine(tokenizer=tokenizer)
    for sampling in (SamplingParams(), SamplingParams(temperature=1, seed=5)):
        texts = {
            said(
                ask(
                    engine,
                    session=Session(engine, pipelined=piped),
                    sampling=sampling,
                    max_tokens=40,
                )
            ).text
            for piped in (True, False)
        }
        assert len(texts) == 1


# -- seeds


def test_the_seed_is_told_and_replays_the_answer(tokenizer):
    engine = tiny_engine(tokenizer=tokenizer)
    first = said(ask(engine, sampling=SamplingParams(temperature=1), max_tokens=20))
    again = SamplingParams(temperature=1, seed=first.seed)
    assert said(ask(engine, sampling=again, max_tokens=20)).text == first.text


def test_zero_is_a_seed(tokenizer):
    engine = tiny_engine(tokenizer=tokenizer)
    zero = SamplingParams(temperature=1, seed=0)
    answers = [said(ask(engine, sampling=zero, max_tokens=20)) for _ in range(2)]
    assert [answer.seed for answer in answers] == [0, 0]
    assert answers[0].text == answers[1].text


def test_without_a_seed_answers_differ(tokenizer):
    engine = tiny_engine(tokenizer=tokenizer)
    texts = {
        said(ask(engine, sampling=SamplingParams(temperature=1), max_tokens=20)).text
        for _ in range(5)
    }
    assert len(texts) == 5


# -- cancelling and failing


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
def test_closing_an_answer_at_any_point_frees_its_row(family, pipelined, tokenizer):
    engine = tiny_engine(family, tokenizer=tokenizer)
    params = SequenceParams(tuple(range(20)), max_tokens=6)
    session = Session(engine, pacer=PrefillPacer(4), pipelined=pipelined)
    whole = list(session.generate(params))
    for events in range(len(whole) + 1):
        running = session.generate(params)
        seen = [next(running) for _ in range(events)]
        running.close()
        assert [type(event) for event in seen] == [type(event) for event in whole[:events]]
        assert storage_of(engine).arrays() == []
        assert rows_of(engine) == {}
    assert deltas_of(session.generate(params)) == deltas_of(whole)


def test_a_failing_forward_is_raised_after_the_text_before_it(engine):
    watched = Watched(engine)
    watched.fails_in = lambda call: call == 4
    events: list[SessionEvent] = []
    with pytest.raises(EvalFailed, match="the device fell over"):
        collect_into(events, Session(engine).generate(SequenceParams((A,))))
    assert deltas_of(events) == [("b", 1), ("c", 2), ("d", 3)]
    assert storage_of(engine).arrays() == []
    watched.fails_in = lambda call: False
    assert said(ask(engine, max_tokens=2)).text == "bc"


@pytest.mark.parametrize("failing", range(1, 9))
@pytest.mark.parametrize("pipelined", [True, False])
def test_whichever_forward_fails_the_row_is_freed(engine, failing: int, pipelined: bool):
    watched = Watched(engine)
    watched.fails_in = lambda call: call == failing
    session = Session(engine, pacer=PrefillPacer(4), pipelined=pipelined)
    with pytest.raises(EvalFailed):
        collect_into([], session.generate(SequenceParams(tuple(range(10)))))
    assert storage_of(engine).arrays() == []
    assert engine.health.failures == 1


def test_a_failing_read_is_raised_and_the_row_freed(engine, monkeypatch):
    events: list[SessionEvent] = []
    running = Session(engine).generate(SequenceParams((A,)))
    events.append(next(running))

    def fails(array) -> list:
        raise EvalFailed("lost the device")

    with monkeypatch.context() as patched:
        patched.setattr(guard, "read", fails)
        with pytest.raises(EvalFailed, match="lost the device"):
            collect_into(events, running)
    assert storage_of(engine).arrays() == []
    assert said(ask(engine, max_tokens=2)).text == "bc"


def test_a_request_that_cannot_be_is_refused_before_anything_happens(engine):
    watched = Watched(engine)
    with pytest.raises(InvalidParams):
        ask(engine, stop_ids=frozenset({10**6}))
    with pytest.raises(ContextOverflow):
        ask(engine, "a" * 600)
    assert watched.calls == 0
    assert rows_of(engine) == {}


def collect_into(events: list[SessionEvent], running: Iterator[SessionEvent]) -> None:
    events.extend(running)


# -- timings


class Clock:
    """Stands still but in forwards and reads, which take a second and a tenth."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(engine, monkeypatch) -> Clock:
    clock = Clock()
    model = inner_model(engine)

    def forward(tokens, cache):
        clock.now += 1.0
        return model(tokens, cache=cache)

    put_model(engine, forward)
    return clock


def test_the_rate_counts_from_the_first_token_and_not_that_token(engine, clock):
    session = Session(engine, pacer=PrefillPacer(4), pipelined=False, clock=clock)
    timings = said(ask(engine, "abcdefghi", session=session, max_tokens=5)).timings
    # Two pieces of four tokens and the last token alone.
    assert (timings.prompt_n, timings.prompt_s, timings.ttft_s) == (9, 3.0, 3.0)
    assert (timings.predicted_n, timings.predicted_s) == (5, 4.0)
    assert timings.predicted_per_second == 1.0
    assert timings.prompt_per_second == 3.0
    assert timings.cache_n == timings.draft_n == 0


def test_the_step_that_finds_the_end_token_is_no_part_of_the_rate(engine, clock):
    session = Session(engine, pipelined=False, clock=clock)
    answer = said(ask(engine, session=session, stop_ids=frozenset({A + 4})))
    assert answer.text == "bcd"
    assert (answer.timings.predicted_n, answer.timings.predicted_s) == (3, 2.0)
    assert answer.timings.predicted_per_second == 1.0


def test_one_token_has_no_rate(engine, clock):
    timings = said(ask(engine, session=Session(engine, clock=clock), max_tokens=1)).timings
    assert (timings.predicted_n, timings.predicted_s, timings.predicted_per_second) == (1, 0, 0)


def test_an_end_token_at_once_still_tells_how_long_it_took(engine, clock):
    session = Session(engine, clock=clock)
    timings = said(ask(engine, session=session, stop_ids=frozenset({A + 1}))).timings
    assert (timings.ttft_s, timings.predicted_n, timings.predicted_s) == (1.0, 0, 0.0)
