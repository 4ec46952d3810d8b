"""Proves how many threads a product gets on machines of every shape."""

import math
import os
from pathlib import Path

import pytest

from engine.runtime.threads import blas_threads, busy_cpus, cpu_quota, physical_cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight logical CPUs, four physical cores, idle, all of them usable."""
    for cpu in range(8):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{cpu // 2}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/own\n")
    set_load(tmp_path, 0.0, 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    return tmp_path


def set_load(machine: Path, minute: float, running: int) -> None:
    (machine / "proc/loadavg").write_text(f"{minute} 0.0 0.0 {running}/300 4711\n")


def threads(machine: Path, requested: int | None = None, **environment: str) -> int:
    return blas_threads(
        requested, environment=environment, system=machine / "sys", proc=machine / "proc"
    )


def test_an_idle_machine_gives_its_physical_cores(machine: Path):
    assert threads(machine) == 4


@pytest.mark.parametrize(
    ("minute", "running", "expected"),
    [
        pytest.param(2.0, 4, 2, id="two others busy"),
        pytest.param(3.0, 1, 4, id="load of the last minute that is over"),
        pytest.param(0.1, 9, 4, id="a moment's crowd"),
        pytest.param(30.0, 40, 1, id="more load than cores"),
    ],
)
def test_load_counts_when_it_was_there_and_still_is(
    machine: Path, minute: float, running: int, expected: int
):
    set_load(machine, minute, running)
    assert threads(machine) == expected


def test_only_the_share_of_load_on_the_usable_cpus_counts(
    machine: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    set_load(machine, 2.0, 3)
    assert threads(machine) == 1
    set_load(machine, 0.0, 1)
    assert threads(machine) == 2


@pytest.mark.parametrize(("text", "expected"), [("200000 100000", 2), ("50000 100000", 1)])
def test_a_control_group_s_quota_is_kept(machine: Path, text: str, expected: int):
    group = machine / "sys/fs/cgroup/own"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{text}\n")
    assert threads(machine) == expected


def test_a_quota_of_the_first_cgroup_version_is_kept(machine: Path):
    (machine / "proc/self/cgroup").write_text("4:memory:/a\n3:cpu,cpuacct:/b\n")
    group = machine / "sys/fs/cgroup/cpu/b"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(machine / "sys", machine / "proc") == 3


@pytest.mark.parametrize("text", ["max 100000", "-1", "", "0 0"])
def test_no_quota_is_no_bound(machine: Path, text: str):
    group = machine / "sys/fs/cgroup/own"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(text)
    assert cpu_quota(machine / "sys", machine / "proc") == math.inf


def test_the_caller_s_count_wins_over_the_environment_and_that_over_the_machine(machine: Path):
    assert threads(machine, OMP_NUM_THREADS="3") == 3
    assert threads(machine, OMP_NUM_THREADS="3", OPENBLAS_NUM_THREADS="7") == 7
    assert threads(machine, 2, OPENBLAS_NUM_THREADS="7") == 2


@pytest.mark.parametrize("text", ["", "0", "-2", "many", "2.5"])
def test_a_meaningless_variable_is_passed_over(machine: Path, text: str):
    assert threads(machine, OPENBLAS_NUM_THREADS=text) == 4


def test_a_machine_that_says_nothing_counts_its_cpus(tmp_path: Path):
    assert physical_cores({0, 1, 5}, tmp_path) == 3
    assert busy_cpus(tmp_path) == 0
    assert cpu_quota(tmp_path, tmp_path) == math.inf
