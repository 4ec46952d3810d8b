"""What must be equal for one request to use what another left in the prompt cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.models.fingerprint import ModelFingerprint


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How one request uses the cache."""

    session: str = ""
    """Whose KV it shares: a cache key or a user; empty: that of all who named none."""
    owner: str = ""
    """Who asks, by a digest of the API key; nobody learns from the cache what another sent."""
    adapter: str = ""
    """Name of the adapter that changes the model for it; empty: none."""
    template: str = ""
    """Signature of the chat template that made the prompt; empty: none."""
    history_tokens: int | None = None
    """Where the conversation ends and the marks that call for an answer begin: templates may
    write the answer otherwise in the next turn's prompt, but continue from here. Only KV that
    cannot be cut needs it."""


@dataclass(frozen=True, slots=True)
class CacheScope:
    """A part of the cache that shares nothing with the others."""

    model: ModelFingerprint | None
    """None where nothing is kept beyond the engine."""
    adapter: str
    template: str
    session: str
    owner: str

    @classmethod
    def of(cls, model: ModelFingerprint | None, use: CacheUse) -> CacheScope:
        """The scope of a request."""
        return cls(model, use.adapter, use.template, use.session, use.owner)
