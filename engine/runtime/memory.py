"""Guards memory: what a model will need against what is there, wired memory, cached buffers.

An estimate counts the weights as they will lie in memory, the KV of the whole context and a
margin for what a forward holds in between.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import MemoryShort
from engine.runtime.device import DeviceFacts, Kind

MARGIN_BYTES = 256 * 2**20
"""Activations of a prefill chunk, the tokenizer and the interpreter."""

CLEAR_INTERVAL_TOKENS = 256
"""Generated tokens between two clearings of MLX's buffer cache on Metal and CPU."""

HINTS = (
    "a smaller --ctx-size needs less KV, --quantized or a smaller model less weights; "
    "--force tries anyway"
)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a model needs, in bytes."""

    weight_bytes: int
    """As allocated: after conversion to the dtype that is loaded."""
    kv_bytes_per_token: int
    context_tokens: int
    sequences: int = 1

    @property
    def kv_bytes(self) -> int:
        """KV of every sequence at its full context."""
        return self.kv_bytes_per_token * self.context_tokens * self.sequences

    @property
    def total_bytes(self) -> int:
        """Weights, KV and the margin."""
        return self.weight_bytes + self.kv_bytes + MARGIN_BYTES


def preflight(need: MemoryNeed, device: DeviceFacts, *, available_bytes: int | None = None) -> None:
    """Return if the model fits, before anything is allocated.

    Args:
        need: what it takes.
        device: where it will run.
        available_bytes: overrides what is measured.

    Raises:
        MemoryShort: it does not fit; names weights, KV and what to do.
    """
    have = memory_available(device) if available_bytes is None else available_bytes
    # Where the memory is not known nothing is refused.
    if 0 < have < need.total_bytes:
        parts = f"weights {_gib(need.weight_bytes)}, KV {_gib(need.kv_bytes)} for "
        context = (
            f"{need.sequences} x {need.context_tokens}"
            if need.sequences > 1
            else (f"{need.context_tokens}")
        )
        raise MemoryShort(need.total_bytes, have, f"{parts}{context} tokens; {HINTS}")


def memory_available(device: DeviceFacts) -> int:
    """Bytes a model may take on that device at this moment; 0 if unknown."""
    match device.kind:
        case "metal":
            return device.working_set_bytes or device.memory_bytes * 3 // 4
        case "cuda":
            return device.memory_bytes
        case "cpu":
            return host_memory_available() or device.memory_bytes


def host_memory_available(proc: Path = Path("/proc"), system: Path = Path("/sys")) -> int:
    """Bytes Linux could give without swapping, within the control group's limit; 0 if unknown."""
    free = [_meminfo(proc).get("MemAvailable", 0), *_group_rooms(proc, system)]
    return min((amount for amount in free if amount > 0), default=0)


def clear_interval(kind: Kind, setting: int | None) -> int:
    """Generated tokens between two clearings of MLX's buffer cache; 0 is never.

    Keyed to tokens, not to ticks. CUDA's allocator does better alone.
    """
    if setting is not None:
        return max(0, setting)
    return 0 if kind == "cuda" else CLEAR_INTERVAL_TOKENS


@contextmanager
def wired_limit(device: DeviceFacts, need_bytes: int, mx: Any) -> Iterator[None]:
    """Keep up to ``need_bytes`` resident on Metal while the block runs; elsewhere do nothing.

    The limit that was is restored on the way out, after the device has finished. ``mx`` is
    ``mlx.core``. Run it on the thread that owns MLX.
    """
    if device.kind != "metal" or not device.working_set_bytes:
        yield
        return
    before = mx.set_wired_limit(min(need_bytes, device.working_set_bytes))
    try:
        yield
    finally:
        mx.synchronize()
        mx.set_wired_limit(before)


def _meminfo(proc: Path) -> dict[str, int]:
    amounts = {}
    for line in _read(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            amounts[name] = int(words[0]) * 1024
    return amounts


def _group_rooms(proc: Path, system: Path) -> Iterator[int]:
    """What the control groups of this process leave, from its own up to the root."""
    root = system / "fs/cgroup"
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else (
            "memory.max", "memory.current"
        )  # fmt: skip
        group = top / path.strip("/")
        # A container sees its own group at the root, whatever path it is given.
        for folder in (group, *group.parents):
            limit, used = (_read(folder / name).strip() for name in names)
            if limit.isdecimal() and used.isdecimal():
                cached = _inactive_file(folder)
                yield max(1, int(limit) - int(used) + cached)
            if folder == top:
                break


def _inactive_file(group: Path) -> int:
    """File pages the group could give back: they count as used but hold nothing needed."""
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdecimal():
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"
