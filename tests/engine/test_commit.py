"""The finish step of one token: what is appended, shown and decided."""

import pytest

from engine.commit import NOT_FINITE, commit, fail
from engine.errors import EvalFailed, HookFailed, NonFiniteLogits
from engine.finish import FinishCause, FinishRules
from engine.outcome import SeqId
from engine.params import LoopRule, SamplingParams, SequenceParams
from engine.rows import Phase, Row
from engine.sampling.row_sampler import RowSampler
from engine.text.row_text import RowText

EOS = 0


class Letters:
    """Token 65 is A; 200 opens a character that 201 completes."""

    def __init__(self) -> None:
        self.open = False

    def push(self, token: int) -> str:
        if token == 200:
            self.open = True
            return ""
        text = "é" if self.open and token == 201 else chr(token)
        self.open = False
        return text

    def finish(self) -> str:
        return "\N{REPLACEMENT CHARACTER}" if self.open else ""


class Hooks:
    def __init__(self, cause: FinishCause | None = None, error: Exception | None = None) -> None:
        self.cause, self.error = cause, error

    def mask(self, ids):
        return None

    def finish(self, ids):
        if self.error is not None:
            raise self.error
        return self.cause


def row(*stops: str, hooks: Hooks | None = None, text: bool = True, **rules) -> Row:
    rules = {
        "eos_ids": frozenset({EOS}),
        "max_tokens": None,
        "context_tokens": None,
        "loop": LoopRule(),
        **rules,
    }
    sampler = RowSampler(
        SamplingParams(),
        seed=0,
        choice=0,
        vocab_size=256,
        eos_ids=frozenset({EOS}),
        prompt_tokens=2,
    )
    shown = RowText(Letters(), stops) if text else None
    made = Row(SeqId(7), SequenceParams((1, 2)), FinishRules(**rules), sampler, shown, hooks)
    made.phase = Phase.DECODE
    return made


def write(to: Row, text: str):
    return [commit(to, ord(letter)) for letter in text]


def test_a_token_is_appended_and_its_text_shown():
    one = row()
    (outcome,) = write(one, "A")
    assert (outcome.seq, outcome.token, outcome.text, outcome.finish) == (7, 65, "A", None)
    assert one.ids == [1, 2, 65]
    assert (one.written, one.generated, one.phase) == (1, [65], Phase.DECODE)


def test_an_end_token_is_neither_appended_nor_shown_and_what_was_held_is():
    one = row("ABC")
    write(one, "AB")
    outcome = commit(one, EOS)
    assert (outcome.token, outcome.text, outcome.finish) == (EOS, "AB", FinishCause.EOS)
    assert one.generated == [65, 66]
    assert one.phase is Phase.FINISHED


def test_an_end_token_beats_every_other_cause():
    one = row(hooks=Hooks(FinishCause.STRUCTURED_STOP), max_tokens=1, context_tokens=3)
    assert commit(one, EOS).finish is FinishCause.EOS


def test_a_stop_string_is_not_shown_and_nothing_behind_it():
    one = row("BC")
    outcomes = write(one, "ABC")
    assert [outcome.text for outcome in outcomes] == ["A", "", ""]
    assert outcomes[-1].finish is FinishCause.STOP_SEQUENCE
    assert one.text.stop_match == "BC"
    assert one.generated == [65, 66, 67]


def test_a_stop_string_completed_by_the_token_that_spends_the_budget_is_a_stop():
    one = row("AB", max_tokens=2)
    assert write(one, "AB")[-1].finish is FinishCause.STOP_SEQUENCE


def test_a_grammar_completed_by_the_token_that_spends_the_budget_is_a_stop():
    one = row(hooks=Hooks(FinishCause.STRUCTURED_STOP), max_tokens=1)
    assert write(one, "A")[-1].finish is FinishCause.STRUCTURED_STOP


def test_the_budget_beats_the_context_and_shows_what_was_held():
    one = row("ABC", max_tokens=2, context_tokens=5)
    outcomes = write(one, "AB")
    assert outcomes[-1].finish is FinishCause.LENGTH
    assert outcomes[-1].text == "AB"


def test_an_unfinished_character_is_shown_at_the_end_only():
    one = row(max_tokens=2)
    assert commit(one, ord("A")).text == "A"
    last = commit(one, 200)
    assert last.text == "\N{REPLACEMENT CHARACTER}"
    other = row()
    assert [commit(other, token).text for token in (200, 201)] == ["", "é"]


def test_the_token_that_trips_the_loop_is_appended_but_not_shown():
    one = row(loop=LoopRule(max_pattern=1, min_count=3))
    outcomes = write(one, "AAA")
    assert outcomes[-1].finish is FinishCause.REPETITION_LOOP
    assert [outcome.text for outcome in outcomes] == ["A", "A", ""]
    assert one.written == 3


def test_a_row_without_text_ends_all_the_same():
    one = row(text=False, max_tokens=1)
    outcome = commit(one, 65)
    assert (outcome.text, outcome.finish) == ("", FinishCause.LENGTH)
    assert commit(row(text=False), EOS).text == ""


def test_a_row_without_usable_logits_fails_and_writes_nothing():
    one = row()
    outcome = commit(one, NOT_FINITE)
    assert isinstance(outcome.error, NonFiniteLogits)
    assert (outcome.token, one.generated) == (None, [])
    assert one.failed


@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("bad"), ZeroDivisionError("bad")])
def test_a_hook_that_raises_ends_the_row(error: Exception):
    one = row(hooks=Hooks(error=error))
    outcome = commit(one, 65)
    assert isinstance(outcome.error, HookFailed)
    assert type(error).__name__ in str(outcome.error)
    assert one.phase is Phase.FINISHED


def test_what_a_failed_row_wrote_stays():
    one = row()
    write(one, "AB")
    outcome = fail(one, EvalFailed("gone"))
    assert outcome.is_final
    assert outcome.token is None
    assert one.generated == [65, 66]
    assert (one.phase, one.failed) == (Phase.FINISHED, True)


def test_joined_pieces_are_the_whole_text():
    one = row("xyz")
    pieces = [outcome.text for outcome in write(one, "axybxyxya")]
    pieces.append(commit(one, EOS).text)
    assert "".join(pieces) == "axybxyxya" == one.text.text
