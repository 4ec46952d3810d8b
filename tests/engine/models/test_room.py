"""Tests of engine/models/room.py."""

import pytest

from engine.models.room import available_bytes


@pytest.fixture
def proc(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  9000 kB\nMemAvailable:   1000 kB\n")
    return file


def test_what_the_system_can_give_is_available(proc, tmp_path):
    assert available_bytes(proc, tmp_path) == 1000 * 1024


def test_a_containers_limit_counts_less_what_it_uses(proc, tmp_path):
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("200000\n")
    assert available_bytes(proc, tmp_path) == 300000


def test_a_container_without_a_limit_counts_for_nothing(proc, tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("200000\n")
    assert available_bytes(proc, tmp_path) == 1000 * 1024


def test_a_container_over_its_limit_has_nothing(proc, tmp_path):
    (tmp_path / "memory.max").write_text("1\n")
    (tmp_path / "memory.current").write_text("2\n")
    assert available_bytes(proc, tmp_path) == 0


def test_a_system_that_does_not_say_gives_half_of_its_memory(tmp_path):
    assert available_bytes(tmp_path / "none", tmp_path) > 2**28
