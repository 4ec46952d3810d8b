"""Says how much memory weights may still take on this machine."""

import os
from pathlib import Path

_PROC = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Return what can be allocated before the system swaps, within the container's limit.

    Where the system does not say, half of the physical memory is taken to be free.
    """
    free = _mem_available(proc)
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used))


def _mem_available(proc: Path) -> int | None:
    try:
        lines = proc.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such control group, or "max"
        return None
