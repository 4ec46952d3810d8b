"""Decides how many threads a product may use: the cores this process owns, less what others use.

``OPENBLAS_NUM_THREADS`` and ``OMP_NUM_THREADS`` are read here because the BLAS reads them itself:
the two must agree.
"""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""The user's word on threads, strongest first."""


def blas_threads(
    requested: int | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    system: Path = Path("/sys"),
    proc: Path = Path("/proc"),
) -> int:
    """Threads for one product, at least 1.

    ``requested``, then the environment, then physical cores of the affinity mask, at most the
    control group's quota, less the load that was there in the last minute and still is: a thread
    that waits for one the system does not run makes a product ten times slower.
    """
    wishes = (environment.get(name, "") for name in THREAD_VARIABLES)
    wish = next((int(text) for text in wishes if text.isdecimal() and int(text) > 0), None)
    if requested is not None or wish is not None:
        return max(1, requested if requested is not None else wish or 1)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(_online())
    cores = physical_cores(usable, system)
    share = len(usable) / _online()
    free = min(cores, cpu_quota(system, proc)) - round(busy_cpus(proc) * share)
    return max(1, math.floor(free))


def physical_cores(cpus: Iterable[int], system: Path = Path("/sys")) -> int:
    """Physical cores behind these logical CPUs; all of them where the topology is not known."""
    cores = set()
    for cpu in cpus:
        topology = system / f"devices/system/cpu/cpu{cpu}/topology"
        package, core = _word(topology / "physical_package_id"), _word(topology / "core_id")
        cores.add((package, core) if package and core else cpu)
    return len(cores)


def cpu_quota(system: Path = Path("/sys"), proc: Path = Path("/proc")) -> float:
    """CPUs the control group may use (v2 ``cpu.max``, v1 ``cfs_quota``); infinite without one."""
    quota = math.inf
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = system / "fs/cgroup" / ("" if not controllers else "cpu")
        for group in (root / path.lstrip("/"), root):
            quota = min(quota, _group_quota(group))
    return quota


def busy_cpus(proc: Path = Path("/proc")) -> float:
    """CPUs others keep busy: the lesser of the last minute's load and what runs at this moment.

    The load of the last minute alone would count the run this user just finished.
    """
    fields = [*_lines(proc / "loadavg"), ""][0].split()
    try:
        return max(0.0, min(float(fields[0]), int(fields[3].split("/")[0]) - 1))
    except (IndexError, ValueError):
        return 0.0


def _group_quota(group: Path) -> float:
    limit = (_word(group / "cpu.max") or "").split()
    if not limit:
        limit = [_word(group / f"cpu.cfs_{part}_us") or "" for part in ("quota", "period")]
    if len(limit) == 2 and all(text.isdecimal() for text in limit) and int(limit[1]):
        return max(1.0, int(limit[0]) / int(limit[1]))
    return math.inf


def _online() -> int:
    return os.cpu_count() or 1


def _word(path: Path) -> str | None:
    lines = _lines(path)
    return lines[0].strip() if lines else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
