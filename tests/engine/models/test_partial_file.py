"""Tests of engine/models/partial_file.py; test_pull.py has the transfers that break off."""

import threading

import pytest
from huggingface_hub import constants

from engine.errors import PullFailed
from engine.models.hub_files import HubFile
from engine.models.partial_file import fetch
from tests.engine.models.fake_hub import FakeHub, running

CONTENT = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def online(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub():
    with running(FakeHub({"w": CONTENT})) as served:
        yield served


def url_of(hub: FakeHub) -> str:
    return f"{hub.endpoint}/owner/name/resolve/main/w"


def test_a_partial_file_longer_than_the_whole_is_dropped(hub, tmp_path):
    file = HubFile("w", len(CONTENT), hub.etag("w"))
    file.partial(tmp_path).write_bytes(b"x" * (len(CONTENT) + 1))
    fetch(url_of(hub), file, tmp_path, lambda _: None)
    assert (tmp_path / file.etag).read_bytes() == CONTENT
    assert hub.fetched("w") == [None]


def test_a_complete_partial_file_is_only_checked(hub, tmp_path):
    file = HubFile("w", len(CONTENT), hub.etag("w"))
    file.partial(tmp_path).write_bytes(CONTENT)
    fetch(url_of(hub), file, tmp_path, lambda _: None)
    assert (tmp_path / file.etag).read_bytes() == CONTENT
    assert hub.asked == []


def test_more_bytes_than_announced_are_refused(hub, tmp_path):
    file = HubFile("w", 100, "small")
    with pytest.raises(PullFailed, match="more of w"):
        fetch(url_of(hub), file, tmp_path, lambda _: None)
    assert not (tmp_path / "small").exists()


def test_an_empty_file_needs_no_transfer(hub, tmp_path):
    fetch(url_of(hub), HubFile("w", 0, "empty"), tmp_path, lambda _: None)
    assert (tmp_path / "empty").read_bytes() == b""
    assert hub.asked == []


def test_of_two_at_once_one_transfers_and_the_other_waits(hub, tmp_path):
    file = HubFile("w", len(CONTENT), hub.etag("w"))
    arrived, go_on = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        arrived.set()
        assert go_on.wait(10)

    def wait(_: int) -> None:
        go_on.set()

    first = threading.Thread(target=fetch, args=(url_of(hub), file, tmp_path, hold))
    first.start()
    assert arrived.wait(10)
    fetch(url_of(hub), file, tmp_path, wait)
    first.join()
    assert (tmp_path / file.etag).read_bytes() == CONTENT
    assert hub.fetched("w") == [None]
