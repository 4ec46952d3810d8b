"""What the engine thread is asked for when one answer is wanted, and the events it emits.

Plain values that cross the thread's border; nothing here imports MLX.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.errors import ModelNotFound, PullFailed
from engine.events import PrefillProgress
from engine.lookup.stats import LookupStats
from engine.models.progress import Progress
from engine.outcome import Timings, Usage
from engine.params import SamplingParams, SpeculationParams
from engine.text.answer_text import TextDelta
from mlxcel_cli.config import Settings
from mlxcel_cli.prompt_input import PromptInput
from mlxcel_cli.sampling_options import Bias


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Which model to load, and how."""

    name: str | None
    settings: Settings
    dtype: str | None = None
    quantized: bool | None = None
    """None: the form that runs fastest here and fits."""
    context_tokens: int | None = None
    offline: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What was loaded."""

    name: str
    path: Path
    load_s: float
    has_template: bool
    notes: tuple[str, ...] = ()
    """What was chosen and why."""
    warnings: tuple[str, ...] = ()
    """What makes it slower or worse than it could be."""
    device: str = ""
    context_tokens: int | None = None
    """Most tokens of prompt and answer together."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling parameters that its authors recommend, by name."""
    can_switch_thinking: bool = False
    """Whether its chat template can switch the model's thinking off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """What to answer, and how."""

    prompt: PromptInput
    sampling: SamplingParams
    biases: tuple[Bias, ...] = ()
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    context_tokens: int | None = None
    ignore_eos: bool = False
    speculation: SpeculationParams | None = None
    """Prompt lookup's settings; where it cannot be used, the answer is decoded plainly."""
    lookup_texts: tuple[tuple[str, str], ...] = ()
    """Name and content of texts that drafts may come from too."""
    reuses_kv: bool = False
    """Whether the prompt continues the answers before: their KV is used and kept."""


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """How an answer ended."""

    text: str
    """The answer without its reasoning; equals the joined deltas."""
    finish: str | None
    seed: int
    usage: Usage
    timings: Timings
    reasoned: bool = field(default=False)
    """Whether the model wrote reasoning."""
    lookup: LookupStats | None = None
    """What prompt lookup did, when it was on."""
    lookup_dropped: str | None = None
    """Why it ended before the answer did, if it did."""


@dataclass(frozen=True, slots=True)
class LookupRefused:
    """Prompt lookup was asked for and cannot be used; the answer is decoded plainly."""

    reason: str


AnswerEvent = PrefillProgress | TextDelta | AnswerDone | LookupRefused


KEEPS_MODEL = (ModelNotFound, PullFailed)
"""What `Backend.load` raises while the model before is still loaded."""


class Backend(Protocol):
    """Loads a model and answers with it; every method runs on the engine thread."""

    def load(self, request: ModelRequest, report: Callable[[Progress], None]) -> ModelReport:
        """Find the model, bring it if need be, and load it in place of the one before.

        Raises:
            ModelNotFound, PullFailed: it is not there; the one before is (`KEEPS_MODEL`).
            EngineError: any other fault; none is loaded.
        """

    def answer(self, request: AnswerRequest) -> Iterator[AnswerEvent]:
        """Answer one prompt; closing the iterator cancels. The last event is AnswerDone."""

    def unload(self) -> None:
        """Free the model; idempotent."""
