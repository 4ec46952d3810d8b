"""Keeps what verify rounds cost on this machine, so that they are measured once and not each run.

One small file per model, device, BLAS and version in the cache folder. What cannot be read or does
not fit counts as not measured.
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from engine.errors import InvalidParams
from engine.lookup.widths import WidthCosts

FOLDER = "verify-widths"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything that the costs depend on."""

    model: str
    """Its folder's name and what its weights are in memory."""
    device: str
    blas: str
    """The BLAS and its threads; empty on a GPU."""


class WidthCostsFile:
    """The kept costs of one model on one machine.

    Args:
        cache_home: mlxcel's cache folder.
        measured: what they were, or are to be, measured on.
    """

    def __init__(self, cache_home: Path, measured: Measured) -> None:
        self._key = asdict(measured) | {"mlxcel": version("mlxcel")}
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = cache_home / FOLDER / f"{digest[:24]}.json"

    def load(self, max_draft: int) -> WidthCosts | None:
        """The costs, if drafts of ``max_draft`` tokens were measured."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["key"] != self._key:
                return None
            costs = WidthCosts(tuple(float(cost) for cost in kept["costs"]))
        except (OSError, ValueError, TypeError, KeyError, InvalidParams):
            return None
        return costs if costs.max_draft >= max_draft else None

    def save(self, costs: WidthCosts) -> None:
        """Keep the costs; a cache that cannot be written loses them silently."""
        content = json.dumps({"key": self._key, "costs": [round(one, 4) for one in costs.by_width]})
        part = self.path.with_suffix(f".{os.getpid()}.part")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(content, encoding="utf-8")
            part.replace(self.path)
