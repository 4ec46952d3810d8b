"""The bounded channel between engine and handler."""

import asyncio

import pytest

from engine.errors import EngineClosed
from engine.events import Cancelled, Delta
from engine.outcome import Usage
from mlxcel_cli.serve.channel import CAPACITY, Channel, Refused


class Valve:
    def __init__(self):
        self.calls = []

    def channel(self, *ids):
        return Channel(
            ids,
            pause=lambda rows: self.calls.append(("pause", rows)),
            resume=lambda rows: self.calls.append(("resume", rows)),
        )


def delta(id_="a"):
    return Delta(id_, "x", (1,), (), 1)


def test_all_that_is_there_is_taken_at_once_in_order():
    async def scene():
        channel = Valve().channel("a")
        events = [delta(), delta(), Cancelled("a", Usage(1, 1))]
        for event in events:
            channel.put(event)
        assert await channel.take(None) == events
        assert channel.running == ()

    asyncio.run(scene())


def test_a_reader_waits_for_the_next_event():
    async def scene():
        channel = Valve().channel("a")
        reading = asyncio.create_task(channel.take(None))
        await asyncio.sleep(0)
        channel.put(delta())
        assert await reading == [delta()]

    asyncio.run(scene())


def test_time_runs_out_with_nothing():
    async def scene():
        channel = Valve().channel("a")
        assert await channel.take(0.001) == []
        assert await channel.take(0) == []

    asyncio.run(scene())


def test_a_full_channel_pauses_its_rows_once_and_a_reader_resumes_them():
    async def scene():
        valve = Valve()
        channel = valve.channel("a", "b")
        for _ in range(CAPACITY + 3):
            channel.put(delta())
        assert valve.calls == [("pause", ("a", "b"))]
        assert len(await channel.take(None)) == CAPACITY + 3
        assert valve.calls[1:] == [("resume", ("a", "b"))]

    asyncio.run(scene())


def test_rows_that_have_ended_are_not_paused():
    async def scene():
        valve = Valve()
        channel = valve.channel("a")
        channel.put(Cancelled("a", Usage(1, 1)))
        for _ in range(CAPACITY):
            channel.put(delta())
        assert valve.calls == []

    asyncio.run(scene())


def test_a_refusal_ends_every_row():
    channel = Valve().channel("a", "b")
    channel.put(Refused(("a", "b"), EngineClosed("gone")))
    assert channel.running == ()


def test_a_reader_that_is_cancelled_leaves_the_channel_in_order():
    async def scene():
        channel = Valve().channel("a")
        reading = asyncio.create_task(channel.take(None))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        channel.put(delta())
        assert await channel.take(None) == [delta()]

    asyncio.run(scene())
