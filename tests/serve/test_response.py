"""A response's chunks from the scheduler's events: reasoning, counts, failures, stop strings."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from engine.errors import EvalFailed
from engine.events import Cancelled, Delta, Done, Failed, PrefillProgress, Started
from engine.finish import FinishCause
from engine.outcome import Timings, TokenLogprob, TokenLogprobs, Usage
from engine.params import SequenceParams
from engine.scheduler.request import ScheduledRequest
from engine.text.answer_text import ThinkingMarks
from mlxcel_cli.serve.choices import choices_of
from mlxcel_cli.serve.generation import Generation
from mlxcel_cli.serve.generation_fields import StreamOptions
from mlxcel_cli.serve.openai.response import ChatFormatter, Head
from mlxcel_cli.serve.prompts import EncodedPrompt
from mlxcel_cli.serve.response import ResponseStream

HEAD = Head("chatcmpl-1", "pet", "mlxcel-0", 7, 0)
MARKS = (ThinkingMarks("<think>", "</think>"),)
TOKENIZER = SimpleNamespace(piece_bytes=lambda token: bytes([token]))


def response(*, marks=(), inside=False, stops=(), options=None, rows=1):
    prompt = EncodedPrompt((1, 2, 3), "abc", opens_thinking=inside)
    requests = tuple(
        ScheduledRequest(f"r/{index}", SequenceParams((1,)), stops) for index in range(rows)
    )
    choices = choices_of(Generation(requests, (prompt,), 7), TOKENIZER, marks)
    return ResponseStream(choices, ChatFormatter(HEAD, choices, options))


def delta(text, count=1, row=0, logprobs=()):
    return Delta(f"r/{row}", text, tuple(range(count)), logprobs, count)


def done(finish=FinishCause.EOS, row=0, stop=None):
    timings = Timings(3, 0.1, 2, 0.1, 0.1)
    return Done(f"r/{row}", finish, stop, Usage(3, 2), timings, 7)


def sent(subject, *events):
    return [json.loads(line.removeprefix(b"data: ")) for line in subject.lines(events)]


def deltas(chunks):
    return [chunk["choices"][0]["delta"] for chunk in chunks]


STARTED = Started("r/0", 0, 3, 7, 0.0)


@pytest.mark.parametrize("inside", [True, False])
def test_thoughts_go_to_their_own_field_without_marks(inside):
    subject = response(marks=MARKS, inside=inside)
    start = "" if inside else "<think>"
    chunks = sent(subject, delta(start + "hm"), delta(" so</thi"), delta("nk>\n\nYes"), done())
    assert deltas(chunks) == [
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"reasoning_content": " so", "reasoning": " so"},
        {"content": "Yes"},
        {},
    ]
    message = json.loads(msgspec.json.encode(subject.whole()))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm so", "Yes")


def test_a_message_without_thoughts_has_no_field_for_them():
    subject = response()
    sent(subject, delta("Yes"), done())
    message = json.loads(msgspec.json.encode(subject.whole()))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes", "refusal": None}


def test_text_that_is_held_back_makes_no_chunk():
    assert sent(response(), delta(""), PrefillProgress("r/0", 1, 3)) == []


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishCause.EOS, "stop"),
        (FinishCause.STOP_SEQUENCE, "stop"),
        (FinishCause.REPETITION_LOOP, "stop"),
        (FinishCause.STRUCTURED_STOP, "stop"),
        (FinishCause.LENGTH, "length"),
        (FinishCause.CONTEXT_EXHAUSTED, "length"),
    ],
)
def test_causes_have_openai_s_reasons(finish, reason):
    (chunk,) = sent(response(), done(finish))
    assert chunk["choices"][0]["finish_reason"] == reason


def test_the_end_is_the_counts_if_asked_for_and_the_mark():
    quiet, counting = response(), response(options=StreamOptions(include_usage=True))
    assert list(quiet.end()) == [b"data: [DONE]\n\n"]
    sent(counting, delta("a"), done())
    counts, mark = counting.end()
    assert json.loads(counts.removeprefix(b"data: "))["usage"]["total_tokens"] == 5
    assert mark == b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "event", [Failed("r/0", EvalFailed("lost")), Cancelled("r/0", Usage(3, 1))]
)
def test_a_failure_is_the_last_thing_sent(event):
    subject = response(rows=2)
    assert sent(subject, event, delta("late", row=1)) == []
    assert subject.is_over
    (last,) = subject.end()
    assert b'data: {"error":{' in last


def test_a_response_is_over_when_all_its_rows_are():
    subject = response(rows=2)
    sent(subject, done(row=1))
    assert not subject.is_over
    sent(subject, done(row=0))
    assert subject.is_over
    assert msgspec.to_builtins(subject.whole())["usage"]["prompt_tokens"] == 3


def place(token):
    return TokenLogprobs(TokenLogprob(token, -0.5), (TokenLogprob(token, -0.5),))


def test_places_of_text_that_a_stop_took_are_not_sent():
    subject = response(stops=("cd",))
    characters = tuple(place(ord(character)) for character in "abcd")
    chunks = sent(
        subject,
        delta("ab", 4, logprobs=characters),
        done(FinishCause.STOP_SEQUENCE, stop="cd"),
    )
    places = [
        p for c in chunks for p in (c["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert "".join(p["token"] for p in places) == "ab"


def test_places_of_held_text_come_with_it():
    subject = response(stops=("bx",))
    characters = [place(ord(character)) for character in "abc"]
    first = sent(subject, delta("a", 2, logprobs=tuple(characters[:2])))
    second = sent(subject, delta("bc", 3, logprobs=(characters[2],)))
    tokens = [
        [p["token"] for p in chunk["choices"][0]["logprobs"]["content"]]
        for chunk in (*first, *second)
    ]
    assert tokens == [["a"], ["b", "c"]]


def test_infinite_log_probabilities_stay_json():
    broken = TokenLogprobs(TokenLogprob(97, float("-inf")), (TokenLogprob(98, float("nan")),))
    (chunk,) = sent(response(), delta("a", logprobs=(broken,)))
    (found,) = chunk["choices"][0]["logprobs"]["content"]
    assert found["logprob"] == found["top_logprobs"][0]["logprob"] < -1e38
