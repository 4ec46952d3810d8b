"""Proves the preflight's figures, the clearing cadence and the wired limit's return."""

import sys
from pathlib import Path

import pytest

from engine.errors import MemoryShort
from engine.runtime.device import DeviceFacts, Kind
from engine.runtime.memory import (
    MARGIN_BYTES,
    MemoryNeed,
    clear_interval,
    host_memory_available,
    memory_available,
    preflight,
    wired_limit,
)

GIB = 2**30
CPU = DeviceFacts("cpu", "test", 16 * GIB, is_unified=True)
METAL = DeviceFacts("metal", "M0", 16 * GIB, is_unified=True, working_set_bytes=11 * GIB)
CUDA = DeviceFacts("cuda", "G0", 24 * GIB, is_unified=False)
NEED = MemoryNeed(weight_bytes=4 * GIB, kv_bytes_per_token=2**20, context_tokens=2048)


def test_a_model_that_fits_to_the_last_byte_passes():
    preflight(NEED, CPU, available_bytes=6 * GIB + MARGIN_BYTES)


def test_one_byte_too_few_is_refused_with_figures_and_ways_out():
    with pytest.raises(MemoryShort) as caught:
        preflight(NEED, CPU, available_bytes=6 * GIB + MARGIN_BYTES - 1)
    error = caught.value
    assert (error.needed_bytes, error.available_bytes) == (
        6 * GIB + MARGIN_BYTES,
        6 * GIB + MARGIN_BYTES - 1,
    )
    for part in ("weights 4.0 GiB", "KV 2.0 GiB", "2048 tokens", "--ctx-size", "--force"):
        assert part in str(error)


def test_each_sequence_has_its_own_kv():
    assert MemoryNeed(0, 10, 100, sequences=3).kv_bytes == 3000


def test_unknown_memory_forbids_nothing():
    preflight(NEED, CPU, available_bytes=0)


def test_a_gpu_is_asked_for_its_own_memory():
    assert memory_available(METAL) == 11 * GIB
    assert memory_available(CUDA) == 24 * GIB


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_this_machine_has_memory():
    assert 0 < memory_available(CPU) < 2**60


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"}
V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "5:cpu:/x\n4:memory:/a\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 8000 * 1024, id="no group"),
        pytest.param(
            V2 | {"sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/b/memory.current": "5"},
            8000 * 1024,
            id="a group without a limit",
        ),
        pytest.param(
            V2
            | {"sys/fs/cgroup/a/b/memory.max": "5000", "sys/fs/cgroup/a/b/memory.current": "2000"},
            3000,
            id="its own limit",
        ),
        pytest.param(
            V2 | {"sys/fs/cgroup/a/memory.max": "5000", "sys/fs/cgroup/a/memory.current": "1000"},
            4000,
            id="its parent's limit",
        ),
        pytest.param(
            V2 | {"sys/fs/cgroup/memory.max": "5000", "sys/fs/cgroup/memory.current": "1500"},
            3500,
            id="a container's, seen at the root",
        ),
        pytest.param(
            V2
            | {
                "sys/fs/cgroup/a/b/memory.max": "5000",
                "sys/fs/cgroup/a/b/memory.current": "4000",
                "sys/fs/cgroup/a/b/memory.stat": "anon 1\ninactive_file 2500\n",
            },
            3500,
            id="cached files can be given back",
        ),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "7000",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1000",
            },
            6000,
            id="cgroup version 1",
        ),
    ],
)
def test_available_memory_is_the_least_any_limit_leaves(
    tmp_path: Path, files: dict[str, str], expected: int
):
    write(tmp_path, MEMINFO | files)
    assert host_memory_available(tmp_path / "proc", tmp_path / "sys") == expected


def test_a_system_that_says_nothing_has_unknown_memory(tmp_path: Path):
    assert host_memory_available(tmp_path, tmp_path) == 0


@pytest.mark.parametrize(
    ("kind", "setting", "tokens"),
    [
        ("metal", None, 256), ("cpu", None, 256), ("cuda", None, 0),
        ("cuda", 64, 64), ("cpu", 0, 0), ("cpu", -1, 0),
    ],
)  # fmt: skip
def test_buffers_are_cleared_by_the_setting_else_by_the_device(
    kind: Kind, setting: int | None, tokens: int
):
    assert clear_interval(kind, setting) == tokens


class FakeMlx:
    def __init__(self) -> None:
        self.limit, self.calls = 77, []

    def set_wired_limit(self, limit: int) -> int:
        self.calls.append(f"limit {limit}")
        before, self.limit = self.limit, limit
        return before

    def synchronize(self) -> None:
        self.calls.append("synchronize")


@pytest.mark.parametrize(("need", "wired"), [(5 * GIB, 5 * GIB), (50 * GIB, 11 * GIB)])
def test_the_wired_limit_is_the_need_at_most_the_working_set(need: int, wired: int):
    mx = FakeMlx()
    with wired_limit(METAL, need, mx):
        assert mx.limit == wired
    assert mx.limit == 77


def test_the_wired_limit_returns_after_a_failure_and_after_the_device_has_finished():
    mx = FakeMlx()
    with pytest.raises(ValueError, match="inside"), wired_limit(METAL, 1, mx):
        raise ValueError("inside")
    assert mx.calls == ["limit 1", "synchronize", "limit 77"]


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_elsewhere_nothing_is_wired(device: DeviceFacts):
    mx = FakeMlx()
    with wired_limit(device, 1, mx):
        pass
    assert mx.calls == []
