import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.finish import (
    LOOP_PATTERN_LIMIT,
    FinishCause,
    FinishRules,
    context_is_full,
    finish_after_push,
    is_loop,
    verify_room,
)
from engine.params import LoopRule

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
        context_tokens=PROMPT + WRITTEN + 1 if FinishCause.CONTEXT_EXHAUSTED in causes else None,
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
def test_the_context_is_full_when_one_more_append_would_reach_the_bound(prompt, written, bound):
    some = FinishRules(frozenset(), None, bound, LoopRule())
    assert context_is_full(written, prompt, some) == (prompt + written + 1 >= bound)


def test_no_bound_never_fills():
    some = FinishRules(frozenset(), None, None, LoopRule())
    assert not context_is_full(10**9, 1, some)
    assert verify_room(10**9, 1, some) is None


@pytest.mark.parametrize(
    ("written", "room"),
    [
        pytest.param(1, 3, id="prompt 20, written 1, bound 26"),
        pytest.param(4, 0, id="nothing left"),
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
