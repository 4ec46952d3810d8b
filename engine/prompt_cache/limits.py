"""How much a prompt cache may hold, and what it counts: plain values, no arrays."""

from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import InvalidParams


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Bounds of a prompt cache; whatever was not used for longest goes first."""

    max_bytes: int | None = 2 * 2**30
    """Most bytes of KV; None: no bound."""
    max_entries: int = 1024
    """Most texts that are cached; where one continues another they are one."""
    ttl_s: float | None = 3600.0
    """Seconds after its last use at which KV is dropped; None: never."""
    min_tokens: int = 32
    """Shortest prefix that is used, and shortest text that is cached."""
    folder: Path | None = None
    """Where KV is kept beyond the process; None: nowhere."""
    folder_bytes: int = 8 * 2**30
    """Most bytes of the folder's files."""

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InvalidParams("prompt_cache_bytes", f"must be 1 or more, got {self.max_bytes}")
        if self.max_entries < 1:
            raise InvalidParams(
                "prompt_cache_entries", f"must be 1 or more, got {self.max_entries}"
            )
        if self.ttl_s is not None and not self.ttl_s > 0:
            raise InvalidParams("prompt_cache_ttl", f"must be above 0, got {self.ttl_s}")
        if self.min_tokens < 1:
            raise InvalidParams(
                "prompt_cache_min_tokens", f"must be 1 or more, got {self.min_tokens}"
            )
        if self.folder_bytes < 1:
            raise InvalidParams(
                "prompt_cache_dir_bytes", f"must be 1 or more, got {self.folder_bytes}"
            )


CONVERSATION = CacheLimits(max_bytes=None, max_entries=3, ttl_s=None, min_tokens=1)
"""Of one person's turns: the newest ones and a way back from an edit, for as long as they last."""


@dataclass(slots=True)
class CacheCounters:
    """Totals since the cache was made."""

    lookups: int = 0
    """Prompts that were looked up."""
    hits: int = 0
    """Prompts that began with cached KV."""
    lookup_tokens: int = 0
    """Tokens of the prompts that were looked up."""
    hit_tokens: int = 0
    """Tokens of these prompts that needed no forward."""
    exports: int = 0
    """Rows whose KV was to be cached when they ended."""
    exported_tokens: int = 0
    """Tokens whose KV was copied; what was cached already is not."""
    disk_tokens: int = 0
    """Tokens whose KV came from the folder."""
    evicted_bytes: int = 0
    expired_bytes: int = 0
    evictions_lru: int = 0
    """Runs dropped to make room for bytes."""
    evictions_capacity: int = 0
    """Runs dropped because too many texts were cached."""
    evictions_ttl: int = 0
    """Runs dropped because nobody used them."""
    rejects_oversized: int = 0
    """Runs that are larger than all that may be held."""
    rejects_prefix_too_short: int = 0
    """Prompts that began with a cached prefix that is too short to be used."""
    faults: int = 0
    """Exports and imports that failed; the request continued without."""

    def snapshot(self) -> "CacheCounters":
        """A copy that stays as it is."""
        return replace(self)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A prompt cache at one moment."""

    limits: CacheLimits
    counters: CacheCounters
    entries: int
    """Texts that are cached."""
    tokens: int
    """Tokens whose KV is held; what texts share is counted once."""
    nbytes: int
    """Bytes of it."""
    pending: int
    """Rows that have ended and are being exported."""
    disk_entries: int = 0
    """Files in the folder."""
    disk_bytes: int = 0
    """Bytes of them."""
    disk_faults: int = 0
    """Files that could not be read or written."""
