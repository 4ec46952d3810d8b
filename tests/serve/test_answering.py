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
from engine.text.thinking import ThinkingMarks
from mlxcel_cli.serve.answering import Plan, Telling
from mlxcel_cli.serve.asking import Asked, Prompt
from mlxcel_cli.serve.schema.requests import StreamOptions
from mlxcel_cli.serve.shapes import ChatShape, Head

HEAD = Head("chatcmpl-1", "pet", "mlxcel-0", 7, 0)
MARKS = (ThinkingMarks("<think>", "</think>"),)
TOKENIZER = SimpleNamespace(piece_bytes=lambda token: bytes([token]))


def telling(*, marks=(), inside=False, stops=(), options=None, rows=1):
    prompt = Prompt((1, 2, 3), "abc", opens_thinking=inside)
    requests = tuple(
        ScheduledRequest(f"r/{index}", SequenceParams((1,)), stops) for index in range(rows)
    )
    model = SimpleNamespace(tokenizer=TOKENIZER)
    shape = ChatShape(HEAD, TOKENIZER)
    return Telling(Plan(Asked(requests, (prompt,), 7), shape, model, marks, options))


def delta(text, count=1, row=0, logprobs=()):
    return Delta(f"r/{row}", text, tuple(range(count)), logprobs, count)


def done(finish=FinishCause.EOS, row=0, stop=None):
    timings = Timings(3, 0.1, 2, 0.1, 0.1)
    return Done(f"r/{row}", finish, stop, Usage(3, 2), timings, 7)


def told(subject, *events):
    return [json.loads(msgspec.json.encode(chunk)) for chunk in subject.chunks(events)]


def deltas(chunks):
    return [chunk["choices"][0]["delta"] for chunk in chunks]


STARTED = Started("r/0", 0, 3, 7, 0.0)


@pytest.mark.parametrize("inside", [True, False])
def test_thoughts_go_to_their_own_field_without_marks(inside):
    subject = telling(marks=MARKS, inside=inside)
    start = "" if inside else "<think>"
    chunks = told(subject, delta(start + "hm"), delta(" so</thi"), delta("nk>\n\nYes"), done())
    assert deltas(chunks) == [
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"reasoning_content": " so", "reasoning": " so"},
        {"content": "Yes"},
        {},
    ]
    message = json.loads(msgspec.json.encode(subject.whole()))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm so", "Yes")


def test_a_message_without_thoughts_has_no_field_for_them():
    subject = telling()
    told(subject, delta("Yes"), done())
    message = json.loads(msgspec.json.encode(subject.whole()))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes", "refusal": None}


def test_text_that_is_held_back_makes_no_chunk():
    assert told(telling(), delta(""), PrefillProgress("r/0", 1, 3)) == []


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
    (chunk,) = told(telling(), done(finish))
    assert chunk["choices"][0]["finish_reason"] == reason


def test_the_end_is_the_counts_if_asked_for_and_the_mark():
    quiet, counting = telling(), telling(options=StreamOptions(include_usage=True))
    assert list(quiet.end()) == [b"data: [DONE]\n\n"]
    told(counting, delta("a"), done())
    counts, mark = counting.end()
    assert json.loads(counts.removeprefix(b"data: "))["usage"]["total_tokens"] == 5
    assert mark == b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "event", [Failed("r/0", EvalFailed("lost")), Cancelled("r/0", Usage(3, 1))]
)
def test_a_failure_is_the_last_thing_told(event):
    subject = telling(rows=2)
    assert told(subject, event, delta("late", row=1)) == []
    assert subject.is_over
    (last,) = subject.end()
    assert b'data: {"error":{' in last


def test_a_response_is_over_when_all_its_rows_are():
    subject = telling(rows=2)
    told(subject, done(row=1))
    assert not subject.is_over
    told(subject, done(row=0))
    assert subject.is_over
    assert msgspec.to_builtins(subject.whole())["usage"]["prompt_tokens"] == 3


def place(token):
    return TokenLogprobs(TokenLogprob(token, -0.5), (TokenLogprob(token, -0.5),))


def test_places_of_text_that_a_stop_took_are_not_told():
    subject = telling(stops=("cd",))
    letters = tuple(place(ord(letter)) for letter in "abcd")
    chunks = told(
        subject,
        delta("ab", 4, logprobs=letters),
        done(FinishCause.STOP_SEQUENCE, stop="cd"),
    )
    places = [
        p for c in chunks for p in (c["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert "".join(p["token"] for p in places) == "ab"


def test_places_of_held_text_come_with_it():
    subject = telling(stops=("bx",))
    letters = [place(ord(letter)) for letter in "abc"]
    first = told(subject, delta("a", 2, logprobs=tuple(letters[:2])))
    second = told(subject, delta("bc", 3, logprobs=(letters[2],)))
    tokens = [
        [p["token"] for p in chunk["choices"][0]["logprobs"]["content"]]
        for chunk in (*first, *second)
    ]
    assert tokens == [["a"], ["b", "c"]]


def test_infinite_log_probabilities_stay_json():
    broken = TokenLogprobs(TokenLogprob(97, float("-inf")), (TokenLogprob(98, float("nan")),))
    (chunk,) = told(telling(), delta("a", logprobs=(broken,)))
    (found,) = chunk["choices"][0]["logprobs"]["content"]
    assert found["logprob"] == found["top_logprobs"][0]["logprob"] < -1e38
