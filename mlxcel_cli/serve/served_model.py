"""What the event loop knows of the model: facts, tokenizer and template, no arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlxcel_cli.serve.prompt_limit import PromptLimit

if TYPE_CHECKING:
    from engine.models.facts import GenerationDefaults, ModelFacts
    from engine.text.template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

DEFAULT_NAME = "default"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is served. Tokenizer and template may be used on any thread."""

    facts: ModelFacts
    tokenizer: Tokenizer
    template: ChatTemplate | None
    generation: GenerationDefaults
    context_tokens: int
    """Most tokens of prompt and answer."""
    kv_budget_tokens: int | None
    """Most tokens of KV in all rows together; None: no bound."""
    load_s: float
    keeps_whole_kv: bool = False
    """Whether its KV cannot be cut, so that the prompt cache has to know where turns end."""
    kv_kind: str = ""
    """How its KV is kept: dense, ring, ..."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    limit: PromptLimit = field(init=False)
    """Refuses prompts that surely do not fit."""

    def __post_init__(self) -> None:
        limit = PromptLimit(self.tokenizer, self.context_tokens)
        object.__setattr__(self, "limit", limit)
