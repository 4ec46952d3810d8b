"""The engine thread's loop: what comes from outside is obeyed between ticks, never inside one."""

from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import pytest

from engine.events import Cancelled, Delta, Done
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.scheduler import BatchScheduler
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from mlxcel_cli.serve.channel import Cancel, Stop, Submit
from mlxcel_cli.serve.engine_loop import EngineLoop
from tests.engine.rigs import byte_tokenizer
from tests.engine.scheduler.prompt_lookup_rigs import COPY, alphabet, drafting, params


@dataclass
class Hosted:
    """A model without files."""

    scheduler: BatchScheduler
    model: Any = None

    def close(self) -> None:
        pass


@pytest.fixture
def engine(tmp_path):
    return alphabet(byte_tokenizer(tmp_path))


def answer(index: int) -> list[int]:
    """The first so many tokens of what the model says to `COPY`."""
    return [(3 + i) % 24 for i in range(index)]


def test_a_cancel_that_comes_during_a_round_is_obeyed_after_it(engine):
    """I8: all of the round is committed and told; then the row is gone."""
    scheduler = BatchScheduler(engine, SchedulerSettings(Limits(parallel=2), lookup=drafting()))
    inbox, told = SimpleQueue(), []
    verify, rounds = engine.verify_together, []

    def verify_while_the_client_goes(drafts):
        rounds.append(max(map(len, drafts.values())))
        if len(rounds) == 2:
            inbox.put(Cancel(("a",)))
        return verify(drafts)

    def tell(notices):
        told.extend(notices)
        if any(isinstance(one, Done) for one in told):
            inbox.put(Stop())

    engine.verify_together = verify_while_the_client_goes
    inbox.put(Submit((ScheduledRequest("a", params(COPY, 200)),)))
    inbox.put(Submit((ScheduledRequest("b", params((100,), 60)),)))
    EngineLoop(lambda _: Hosted(scheduler), inbox, tell).run()
    mine = [one for one in told if getattr(one, "id", None) == "a"]
    written = [token for one in mine if isinstance(one, Delta) for token in one.tokens]
    *_, last_text, end = mine
    assert isinstance(end, Cancelled)
    assert len(last_text.tokens) == rounds[1] + 1 == 8, "the round is told whole"
    assert written == answer(len(written))
    assert end.usage.completion_tokens == len(written)
    neighbour = [one for one in told if isinstance(one, Delta) and one.id == "b"]
    assert sum(len(one.tokens) for one in neighbour) == 60


class Scripted:
    """A scheduler that notes its calls and stops the loop in its third tick."""

    idle = False

    def __init__(self, noted: list[str], inbox: SimpleQueue) -> None:
        self.noted, self.inbox, self.ticks = noted, inbox, 0

    def slack_s(self) -> float:
        return 0.0

    def tick(self) -> list[str]:
        self.ticks += 1
        if self.ticks == 3:
            self.inbox.put(Stop())
        return [f"event {self.ticks}"]

    def flush(self) -> None:
        self.noted.append("flush")


def test_a_tick_is_reported_before_the_device_continues(monkeypatch):
    noted, inbox = [], SimpleQueue()
    monkeypatch.setattr(EngineLoop, "_counts", lambda *_, **__: [])

    def tell(notices):
        noted.extend(one for one in notices if isinstance(one, str))

    EngineLoop(lambda _: Hosted(Scripted(noted, inbox)), inbox, tell).run()
    rounds = [[f"event {number}", "flush"] for number in (1, 2, 3)]
    assert noted == [word for one in rounds for word in one]
