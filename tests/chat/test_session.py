"""One chat as it goes: every way an answer ends, what is kept and what is asked next."""

from dataclasses import replace

import pytest

from engine.errors import InvalidParams
from engine.events import PrefillProgress
from engine.outcome import Timings, Usage
from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import AnswerDone, LookupRefused
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.settings import ChatSettings
from mlxcel_cli.chat.store import ChatStore
from tests.chat.locks import held_elsewhere

TIMINGS = Timings(
    prompt_n=4, prompt_s=0.5, predicted_n=3, predicted_s=0.25, ttft_s=0.5, draft_n=6,
    draft_n_accepted=5,
)  # fmt: skip
DONE = AnswerDone("Hello", "eos", 7, Usage(10, 3, 6), TIMINGS)


def saved(session, store):
    return ChatStore(store.path).load(session.chat.id)


def test_an_answer_is_its_pieces_and_its_numbers(session, store):
    session.ask("hi")
    request = session.request()
    assert request.prompt.messages == ({"role": "user", "content": "hi"},)
    assert request.reuses_kv
    for event in (
        PrefillProgress("", 1, 2),
        TextDelta("hm", is_reasoning=True, tokens=1),
        TextDelta("Hello"),
    ):
        session.take(event)
        assert session.is_generating
    session.take(DONE)
    assert not session.is_generating
    answer = session.chat.last_answer
    assert (answer.text, answer.reasoning, answer.finish) == ("Hello", "hm", "eos")
    numbers = answer.numbers
    assert (numbers.prompt_tokens, numbers.evaluated_tokens, numbers.reasoning_tokens) == (10, 4, 1)
    assert (numbers.drafted_tokens, numbers.accepted_tokens) == (6, 5)
    assert saved(session, store) == session.chat
    assert session.chat.model == "tiny"


def test_the_question_is_saved_before_its_answer(session, store):
    session.ask("hi")
    assert [one.text for one in saved(session, store).messages] == ["hi"]


def test_a_crash_loses_at_most_a_second_of_an_answer(session, store, clock):
    session.ask("hi")
    session.request()
    session.take(TextDelta("one ", tokens=1))
    assert len(saved(session, store).messages) == 1
    clock.now_s = 1.0
    session.take(TextDelta("two", tokens=2))
    answer = saved(session, store).last_answer
    assert (answer.text, answer.finish) == ("one two", None)


def test_a_stopped_answer_stays_in_the_chat_and_the_next_turn_continues(session):
    session.ask("hi")
    session.request()
    session.take(TextDelta("Hel", tokens=1))
    session.stop()
    assert session.chat.last_answer.finish == "stopped"
    session.ask("more")
    texts = [one["content"] for one in session.request().prompt.messages]
    assert texts == ["hi", "Hel", "more"]


def test_a_stopped_answer_shows_how_much_of_its_prompt_was_read(session):
    session.ask("hi")
    session.request()
    for event in (
        PrefillProgress("", 20, 34),
        PrefillProgress("", 33, 34),
        TextDelta("Hel", tokens=1),
    ):
        session.take(event)
    session.stop()
    numbers = session.chat.last_answer.numbers
    assert (numbers.prompt_tokens, numbers.evaluated_tokens) == (34, 14)


def test_an_answer_whose_program_was_killed_is_marked_and_can_be_continued(session, store, clock):
    session.ask("hi")
    session.request()
    clock.now_s = 2.0
    session.take(TextDelta("Hel", tokens=1))
    resumed = ChatSession(store, ChatSettings())
    resumed.resume(store.load(session.chat.id))
    assert (resumed.chat.last_answer.text, resumed.chat.last_answer.finish) == ("Hel", "failed")
    assert resumed.can_continue


def test_a_stop_before_the_first_token_keeps_the_question(session):
    session.ask("hi")
    session.request()
    session.stop()
    assert [one.text for one in session.chat.messages] == ["hi"]
    assert not session.is_generating
    session.stop()


def test_an_error_before_the_first_token_gives_the_prompt_back(session):
    session.ask("hi")
    session.request()
    assert session.fail() == "hi"
    assert session.chat.messages == ()


def test_an_error_in_the_middle_keeps_what_was_written(session):
    session.ask("hi")
    session.request()
    session.take(TextDelta("Hel"))
    assert session.fail() == ""
    assert session.chat.last_answer.finish == "failed"


def test_a_regeneration_asks_the_same_and_replaces_the_answer(session):
    session.ask("hi")
    first = session.request()
    session.take(DONE)
    assert session.request().prompt == first.prompt
    session.take(TextDelta("Other"))
    session.take(replace(DONE, text="Other"))
    assert [one.text for one in session.chat.messages] == ["hi", "Other"]


def test_an_error_while_regenerating_keeps_the_answer_that_was_there(session):
    session.ask("hi")
    session.request()
    session.take(TextDelta("Hello"))
    session.take(DONE)
    session.request()
    session.stop()
    assert session.chat.last_answer.text == "Hello"


def test_an_answer_that_was_cut_continues_from_its_end(session):
    session.ask("hi")
    session.request()
    session.take(TextDelta("Hel"))
    session.take(replace(DONE, finish="length"))
    assert session.can_continue
    request = session.request(continues=True)
    assert request.prompt.prefill == "Hel"
    session.take(TextDelta("Hel"))
    session.take(TextDelta("lo"))
    session.take(DONE)
    assert session.chat.last_answer.text == "Hello"
    assert not session.can_continue


def test_taking_the_last_turn_back_gives_what_was_typed(session):
    session.ask("hi")
    session.request()
    session.take(DONE)
    assert session.take_back() == "hi"
    assert session.chat.messages == ()
    assert session.take_back() == ""
    with pytest.raises(InvalidParams, match="nothing to answer"):
        session.request()


def test_a_system_text_goes_before_the_turns_and_into_new_chats(session):
    session.set_system(" Be short. ")
    session.ask("hi")
    assert session.request().prompt.messages[0] == {"role": "system", "content": "Be short."}
    session.stop()
    session.start_new()
    assert session.chat.system == "Be short."


def test_thinking_is_switched_only_where_the_template_can(session):
    session.ask("hi")
    assert session.request().prompt.template_values == {}
    session.stop()
    session.model = replace(session.model, can_switch_thinking=True)
    session.settings.thinking = False
    assert session.request().prompt.template_values == {"enable_thinking": False}


def test_the_reason_against_prompt_lookup_is_kept(session):
    session.ask("hi")
    session.request()
    session.take(LookupRefused("is not possible here"))
    assert session.lookup_refused == "is not possible here"


def test_the_rate_of_an_answer_that_is_written_counts_after_its_first_token(session, clock):
    session.ask("hi")
    session.request()
    for now, tokens in ((2.0, 1), (3.0, 5)):
        clock.now_s = now
        session.take(TextDelta("x", tokens=tokens))
    numbers = session.answer.numbers
    assert (numbers.ttft_s, numbers.tokens_per_s) == (2.0, 4.0)


def test_what_cannot_be_saved_is_not_asked(session, store):
    store.path.mkdir(parents=True)
    with pytest.raises(OSError, match="cannot be used"):
        session.ask("hi")
    assert session.chat.messages == ()


def test_an_answer_that_cannot_be_saved_is_kept_and_reported_and_saved_later(session, store, clock):
    session.ask("hi")
    session.request()
    kept = store.path.read_bytes()
    store.path.write_bytes(b"no database" * 100)
    session.take(TextDelta("Hel"))
    clock.now_s += 2
    session.take(TextDelta("lo"))
    assert "cannot be used" in str(session.unsaved)
    session.take(DONE)
    assert session.chat.last_answer.text == "Hello"
    assert session.unsaved is not None
    store.path.write_bytes(kept)
    session.ask("more")
    assert session.unsaved is None
    assert [one.text for one in saved(session, store).messages] == ["hi", "Hello", "more"]


@pytest.mark.parametrize("end", ["stop", "fail", "take_back"])
def test_no_way_to_end_an_answer_fails_where_it_cannot_be_saved(session, store, end):
    session.ask("hi")
    session.request()
    session.take(TextDelta("Hel"))
    store.path.write_bytes(b"no database" * 100)
    getattr(session, end)()
    assert end == "take_back" or session.chat.last_answer.text == "Hel"


def test_what_is_said_while_another_program_holds_the_file_is_saved_later(session, store, clock):
    session.ask("hi")
    store.wait_s = 0.0
    with held_elsewhere(store.path):
        session.request()
        session.take(TextDelta("Hel"))
        clock.now_s += 2
        session.take(TextDelta("lo"))
        session.take(DONE)
        session.ask("more")
        assert session.waits_for_file
        assert not session.save_again()
    assert session.save_again()
    assert not session.waits_for_file
    assert session.unsaved is None
    assert [one.text for one in saved(session, store).messages] == ["hi", "Hello", "more"]


def test_a_chat_that_was_left_while_the_file_was_held_is_saved_too(session, store):
    store.wait_s = 0.0
    with held_elsewhere(store.path):
        session.ask("first")
        left = session.chat
        session.start_new()
        session.ask("second")
    assert session.save_again()
    assert ChatStore(store.path).load(left.id) == left
    assert saved(session, store).last_asked == "second"


def test_a_chat_that_waits_for_the_file_is_newer_than_what_the_file_holds(session, store):
    session.ask("hi")
    store.wait_s = 0.0
    old = session.chat
    with held_elsewhere(store.path):
        session.rename("greeting")
        session.start_new()
    session.resume(old)
    assert session.chat.title == saved(session, store).title == "greeting"


def test_a_chat_that_waits_for_the_file_continues_with_another_programs(session, store):
    session.ask("hi")
    other = ChatStore(store.path)
    theirs = other.save(other.load(session.chat.id).asked("theirs"))
    store.wait_s = 0.0
    with held_elsewhere(store.path):
        session.set_system("Be short.")
    assert session.save_again()
    assert session.chat.id != theirs.id
    assert saved(session, store) == session.chat
    assert other.load(theirs.id) == theirs


def test_an_empty_chat_is_not_saved_with_what_waits(session, store):
    store.wait_s = 0.0
    with held_elsewhere(store.path):
        session.ask("hi")
        session.start_new()
    assert session.save_again()
    assert [one.messages for one in store.chats()] == [1]
