import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EvalFailed, HookFailed, NonFiniteLogits
from engine.finish import (
    LOOP_PATTERN_LIMIT,
    NOT_FINITE,
    FinishCause,
    FinishRules,
    commit,
    context_is_full,
    fail,
    finish_after_push,
    is_loop,
    verify_room,
)
from engine.outcome import SeqId
from engine.params import LoopRule, SamplingParams, SequenceParams
from engine.rows import Phase, Row
from engine.sampling.row_sampler import RowSampler
from engine.text.row_text import RowText

PROMPT = 4
LOOP = LoopRule(max_pattern=4, min_count=3)
WRITTEN = 6
IDS = (1, 2, 3, 4, *(9,) * WRITTEN)
"""Every cause that can be due is due on the newest of these, if its rule is on."""


def rules(*causes: FinishCause) -> FinishRules:
    """Rules under which exactly ``causes`` are due for `IDS`."""
    return FinishRules(
        eos_ids=frozenset(),
        max_tokens=WRITTEN if FinishCause.LENGTH in causes else None,
        context_tokens=PROMPT + WRITTEN if FinishCause.CONTEXT_EXHAUSTED in causes else None,
        loop=LOOP if FinishCause.REPETITION_LOOP in causes else LoopRule(),
    )


IN_ORDER = (
    FinishCause.STOP_SEQUENCE,
    FinishCause.STRUCTURED_STOP,
    FinishCause.LENGTH,
    FinishCause.CONTEXT_EXHAUSTED,
    FinishCause.REPETITION_LOOP,
)

CONFLICTS = [
    pytest.param(due, id=" before ".join(due))
    for size in range(1, len(IN_ORDER) + 1)
    for due in itertools.combinations(IN_ORDER, size)
]


@pytest.mark.parametrize("due", CONFLICTS)
def test_the_first_cause_that_is_due_wins(due: tuple[FinishCause, ...]):
    structured = FinishCause.STRUCTURED_STOP
    cause = finish_after_push(
        ids=IDS,
        prompt_tokens=PROMPT,
        rules=rules(*due),
        stop_string=FinishCause.STOP_SEQUENCE in due,
        hook=structured if structured in due else None,
    )
    assert cause is due[0]


def test_nothing_due_is_no_finish():
    cause = finish_after_push(ids=IDS, prompt_tokens=PROMPT, rules=rules(), stop_string=False)
    assert cause is None


def test_a_bound_of_a_hook_is_asked_before_max_tokens_and_after_stop_strings():
    given = {"ids": IDS, "prompt_tokens": PROMPT, "hook": FinishCause.LENGTH}
    full = rules(FinishCause.CONTEXT_EXHAUSTED)
    assert finish_after_push(rules=full, stop_string=False, **given) is FinishCause.LENGTH
    assert finish_after_push(rules=full, stop_string=True, **given) is FinishCause.STOP_SEQUENCE


def test_causes_are_listed_in_the_order_they_are_asked():
    assert tuple(FinishCause) == (FinishCause.EOS, *IN_ORDER)


@given(prompt=st.integers(1, 50), written=st.integers(0, 50), bound=st.integers(1, 120))
def test_the_context_is_full_when_prompt_and_answer_reach_the_bound(prompt, written, bound):
    some = FinishRules(frozenset(), None, bound, LoopRule())
    assert context_is_full(written, prompt, some) == (prompt + written >= bound)


def test_no_bound_never_fills():
    some = FinishRules(frozenset(), None, None, LoopRule())
    assert not context_is_full(10**9, 1, some)
    assert verify_room(10**9, 1, some) is None


@pytest.mark.parametrize(
    ("written", "room"),
    [
        pytest.param(1, 4, id="prompt 20, written 1, bound 26"),
        pytest.param(5, 0, id="nothing left"),
        pytest.param(9, 0, id="never negative"),
    ],
)
def test_verify_room_under_a_bound_of_26(written: int, room: int):
    assert verify_room(written, 20, FinishRules(frozenset(), None, 26, LoopRule())) == room


@given(prompt=st.integers(1, 40), written=st.integers(0, 40), bound=st.integers(2, 100))
def test_a_verify_round_that_accepts_all_of_its_room_does_not_pass_the_bound(
    prompt, written, bound
):
    some = FinishRules(frozenset(), None, bound, LoopRule())
    room = verify_room(written, prompt, some)
    if room:
        # The round writes the accepted draft and one token of its own.
        assert not context_is_full(written + room, prompt, some)
        assert context_is_full(written + room + 1, prompt, some)


def looks_looped(answer: list[int], rule: LoopRule) -> bool:
    """The definition, without a thought for speed."""
    for period in range(max(1, rule.min_pattern), min(rule.max_pattern, LOOP_PATTERN_LIMIT) + 1):
        block = answer[-period:]
        if len(answer) >= period * rule.min_count and (
            answer[-period * rule.min_count :] == block * rule.min_count
        ):
            return True
    return False


@given(
    head=st.lists(st.integers(0, 2), max_size=12),
    block=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    copies=st.integers(0, 6),
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    low=st.integers(0, 4),
    high=st.integers(0, 8),
    count=st.integers(2, 5),
)
def test_the_loop_detector_agrees_with_its_definition(
    *, head, block, copies, prompt, low, high, count
):
    rule = LoopRule(min_pattern=low, max_pattern=high, min_count=count)
    answer = head + block * copies
    assert is_loop(prompt + answer, len(prompt), rule) == looks_looped(answer, rule)


def test_a_prompt_that_repeats_itself_is_no_loop():
    assert not is_loop([5] * 40, 38, LoopRule(max_pattern=1, min_count=3))


def test_blocks_longer_than_the_limit_are_not_looked_for():
    block = list(range(LOOP_PATTERN_LIMIT + 1))
    rule = LoopRule(max_pattern=1000, min_count=2)
    assert not is_loop([0, *block, *block], 1, rule)
    assert is_loop([0, *block[1:], *block[1:]], 1, rule)


def test_table_rows_and_equal_numbers_pass_the_recommended_rule():
    # Twelve copies are asked because eleven equal cells of a table are no fault.
    rule = LoopRule(min_pattern=1, max_pattern=20, min_count=12)
    assert not is_loop([1, *[7, 8] * 11], 1, rule)
    assert is_loop([1, *[7, 8] * 12], 1, rule)


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
