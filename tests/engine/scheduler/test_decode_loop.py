"""The decode loop on a counted engine with scripted drafters: what is asked, sent and read when."""

import itertools
from collections.abc import Callable, Sequence

import pytest

from engine.errors import EvalFailed, InvalidParams
from engine.finish import FinishCause
from engine.lookup.drafter import PromptLookup
from engine.lookup.governor import FixedGovernor
from engine.lookup.stats import LookupStats
from engine.outcome import SeqId, StepOutcome, VerifyOutcome
from engine.params import SpeculationParams
from tests.engine.lookup_rigs import OneRow

SEQ = SeqId(0)
VOCAB = 1000


class CountedEngine:
    """Writes ``answer``; keeps a log of what it is asked, and the laws of an engine."""

    def __init__(self, answer: Sequence[int], *, room: int = 64) -> None:
        self.whole = list(answer)
        self.room = room
        self.written = [self.whole[0]]
        self.in_flight: list[int] = []
        self.log: list[str] = []
        self.drafts: list[tuple[int, ...]] = []
        self.failing: set[int] = set()
        """Lengths of the answer at which a step fails."""

    def submit(self, seqs):
        at = len(self.written) + len(self.in_flight)
        assert at < len(self.whole), "a step nobody wants"
        assert len(self.in_flight) < 2
        self.in_flight.append(at)
        self.log.append(f"submit {at}")
        return at

    def collect(self, ticket):
        assert self.in_flight.pop(0) == ticket
        self.log.append(f"read {ticket}")
        if ticket in self.failing:
            return [StepOutcome(SEQ, None, error=EvalFailed("fell over"))]
        return [self._take()]

    def wants_step(self, seq):
        return len(self.written) + len(self.in_flight) < len(self.whole)

    def check_draft(self, draft):
        if any(not 0 <= token < VOCAB for token in draft):
            raise InvalidParams("draft", "outside")

    def verify_together(self, drafts):
        assert not self.in_flight, "a verify round never runs with a step in flight"
        ((seq, draft),) = drafts.items()
        assert 1 <= len(draft) <= self.draft_room(seq, 64)
        self.log.append(f"verify {len(draft)} at {len(self.written)}")
        self.drafts.append(tuple(draft))
        steps, accepted = [], 0
        for position in range(len(draft) + 1):
            steps.append(self._take())
            if steps[-1].is_final or position == len(draft):
                break
            if steps[-1].token != draft[position]:
                break
            accepted += 1
        return [VerifyOutcome(seq, tuple(steps), len(draft), accepted)]

    def draft_room(self, seq, max_draft):
        return max(0, min(max_draft, self.room, len(self.whole) - len(self.written) - 1))

    def answer(self, seq):
        return list(self.written)

    def _take(self) -> StepOutcome:
        token = self.whole[len(self.written)]
        self.written.append(token)
        done = len(self.written) == len(self.whole)
        return StepOutcome(SEQ, token, finish=FinishCause.LENGTH if done else None)


class Scripted:
    """A drafter that proposes what ``propose`` says of the answer so far."""

    def __init__(
        self, propose: Callable[[list[int], int], Sequence[int]], *, pipelines: bool = False
    ) -> None:
        self.script = propose
        self.pipelines = pipelines
        self.seen: list[int] = []
        self.calls: list[str] = []
        self.fails_in: str | None = None

    stats = LookupStats()

    def start(self, prompt, first_token):
        self.seen = [first_token]

    def prepare(self, limit_tokens):
        return True

    def propose(self, current, block_size, others):
        self._call("propose")
        assert self.seen[-1] == current
        assert others == 0
        return tuple(self.script(self.seen, block_size))

    def catch_up(self, generated):
        if len(generated) > len(self.seen):
            self._call("catch_up")
            self.seen += generated[len(self.seen) :]

    def accept(self, draft, accepted, emitted):
        self._call("accept")
        self.seen += emitted

    def discard(self, draft):
        self._call("discard")

    def pipelines_plain_rounds(self):
        return self.pipelines

    def _call(self, name: str) -> None:
        if self.fails_in == name:
            raise IndexError(f"a bug in {name}")
        self.calls.append(name)


def run(engine: CountedEngine, drafter, *, max_draft: int = 7, pipelined: bool = True) -> OneRow:
    """All rounds; the text is always the plain one."""
    if drafter is not None:
        drafter.start((), engine.whole[0])
    rounds = OneRow(engine, SEQ, drafter=drafter, max_draft=max_draft, pipelined=pipelined)
    outcomes = list(rounds.run())
    assert engine.written == engine.whole
    assert outcomes[-1].finish is FinishCause.LENGTH
    assert not engine.in_flight
    return rounds


def right(answer: Sequence[int]) -> Callable[[list[int], int], Sequence[int]]:
    return lambda seen, room: answer[len(seen) : len(seen) + room]


NUMBERS = list(range(1, 41))


def pipelined_steps(log: list[str]) -> int:
    """Steps that were read after the next one had been dispatched."""
    return sum(
        log[at].startswith("submit") and log[at + 1].startswith("read")
        and log[at].split()[1] != log[at + 1].split()[1]
        for at in range(len(log) - 1)
    )  # fmt: skip


@pytest.mark.parametrize("pipelined", [True, False])
def test_without_a_drafter_every_step_but_the_last_is_followed_before_it_is_read(pipelined):
    engine = CountedEngine(NUMBERS)
    run(engine, None, pipelined=pipelined)
    assert pipelined_steps(engine.log) == (38 if pipelined else 0)
    assert engine.log[:3] == (
        ["submit 1", "submit 2", "read 1"] if pipelined else ["submit 1", "read 1", "submit 2"]
    )


def test_a_run_that_never_matches_loses_two_lookaheads_only():
    plain, drafted = CountedEngine(NUMBERS), CountedEngine(NUMBERS)
    run(plain, None)
    run(drafted, PromptLookup(SpeculationParams(), FixedGovernor(7)))
    assert pipelined_steps(drafted.log) == pipelined_steps(plain.log) - 2
    assert drafted.log[:7] == [
        "submit 1", "read 1", "submit 2", "read 2", "submit 3", "submit 4", "read 3",
    ]  # fmt: skip


def test_a_drafter_that_is_always_right_writes_eight_tokens_a_round():
    engine = CountedEngine(NUMBERS)
    run(engine, Scripted(right(NUMBERS)))
    assert engine.log == [
        "verify 7 at 1", "verify 7 at 9", "verify 7 at 17", "verify 7 at 25", "verify 6 at 33",
    ]  # fmt: skip


def test_a_drafter_that_is_always_wrong_costs_no_token():
    engine = CountedEngine(NUMBERS)
    run(engine, Scripted(lambda seen, room: [0] * room))
    assert len(engine.drafts) == 38, "the last token has no room for a draft"


@pytest.mark.parametrize("j", range(8))
def test_a_drafter_that_is_right_up_to_a_position_gains_so_many_tokens(j):
    engine = CountedEngine(NUMBERS)
    run(engine, Scripted(lambda s, r: [*NUMBERS[len(s) : len(s) + j], *[0] * 7][:r]))
    starts = [int(line.split()[-1]) for line in engine.log if line.startswith("verify")]
    assert {b - a for a, b in itertools.pairwise(starts)} == {j + 1}


def test_a_draft_longer_than_the_room_is_cut():
    engine = CountedEngine(NUMBERS, room=3)
    drafter = Scripted(lambda seen, room: NUMBERS[len(seen) :])
    run(engine, drafter)
    assert max(map(len, engine.drafts)) == 3
    assert len(drafter.seen) >= 38
    assert drafter.seen == NUMBERS[: len(drafter.seen)]


def test_where_nothing_may_be_drafted_nobody_is_asked_and_steps_stay_in_flight():
    engine = CountedEngine(NUMBERS, room=0)
    drafter = Scripted(right(NUMBERS))
    run(engine, drafter)
    assert "propose" not in drafter.calls
    assert pipelined_steps(engine.log) == 38


def test_the_last_token_of_the_budget_is_a_plain_step():
    engine = CountedEngine(NUMBERS[:2])
    drafter = Scripted(right(NUMBERS))
    run(engine, drafter)
    assert engine.log == ["submit 1", "read 1"]
    assert "propose" not in drafter.calls


def test_a_proposal_in_flight_is_retracted_the_step_read_and_asked_again():
    engine = CountedEngine(NUMBERS)
    drafter = Scripted(
        lambda seen, room: NUMBERS[len(seen) :][:room] if len(seen) >= 4 else (), pipelines=True
    )
    run(engine, drafter)
    assert engine.log[:6] == [
        "submit 1", "submit 2", "read 1", "submit 3", "read 2", "submit 4",
    ]  # fmt: skip
    # Asked on 4 committed tokens while token 4 is in flight: no token 5 is dispatched.
    assert engine.log[6:9] == ["read 3", "read 4", "verify 7 at 5"]
    assert drafter.calls[-2:] == ["propose", "accept"]
    assert drafter.calls.count("discard") == 1


def test_every_forward_is_counted_also_one_whose_ask_was_retracted():
    engine = CountedEngine(NUMBERS)
    drafter = Scripted(
        lambda seen, room: NUMBERS[len(seen) :][:2] if len(seen) % 5 < 2 else (), pipelines=True
    )
    rounds = run(engine, drafter)
    assert drafter.calls.count("discard") > 2
    assert rounds.forwards == sum(one.startswith(("read", "verify")) for one in engine.log)


def test_every_ask_is_followed_by_its_forward_or_a_retract():
    engine = CountedEngine(NUMBERS)
    drafter = Scripted(
        lambda seen, room: NUMBERS[len(seen) :][:2] if len(seen) % 5 < 2 else (), pipelines=True
    )
    run(engine, drafter)
    pairs = zip(drafter.calls, drafter.calls[1:], strict=False)
    assert all(after != "propose" for before, after in pairs if before == "propose")
    assert len(drafter.seen) >= 38
    assert drafter.seen == NUMBERS[: len(drafter.seen)]


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_drafter_that_makes_up_tokens_is_dropped_and_the_row_goes_on(token):
    engine = CountedEngine(NUMBERS)
    drafter = Scripted(lambda seen, room: [token] if len(seen) > 3 else NUMBERS[len(seen) :][:1])
    rounds = run(engine, drafter)
    assert rounds.dropped == "draft: outside"
    assert drafter.seen == NUMBERS[:5]
    assert pipelined_steps(engine.log) > 30


@pytest.mark.parametrize("call", ["propose", "catch_up", "accept", "discard"])
def test_a_drafter_that_raises_is_dropped_and_seen_and_the_row_goes_on(call):
    engine = CountedEngine(NUMBERS)
    drafter = Scripted(
        lambda seen, room: NUMBERS[len(seen) :][:1] if len(seen) % 5 < 2 else (), pipelines=True
    )
    drafter.fails_in = call
    rounds = run(engine, drafter)
    assert rounds.dropped == f"a bug in {call}"
    assert not drafter.calls.count(call)
    assert pipelined_steps(engine.log) > 20


def test_a_drafter_ahead_of_its_row_is_dropped_and_seen():
    engine = CountedEngine(NUMBERS)
    drafter = PromptLookup(SpeculationParams(), FixedGovernor(7))
    drafter.start((1, 2, 3), NUMBERS[0])
    drafter.observe((99,))
    rounds = OneRow(engine, SEQ, drafter=drafter, max_draft=7)
    assert len(list(rounds.run())) == len(NUMBERS) - 1
    assert rounds.dropped == "prompt lookup knows 2 tokens of an answer of 1"
    assert engine.written == NUMBERS


def test_a_row_that_fails_ends_with_its_error():
    engine = CountedEngine(NUMBERS)
    engine.failing = {4}
    *_, last = OneRow(engine, SEQ, drafter=None).run()
    assert isinstance(last.error, EvalFailed)
    assert engine.written == NUMBERS[:4]
