"""Answers with the real engine: finds, loads and runs a model, all on the engine thread."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from engine.errors import EngineClosed
from engine.models.progress import Progress
from mlxcel_cli.answers import (
    AnswerEvent,
    AnswerRequest,
    ModelReport,
    ModelRequest,
)

if TYPE_CHECKING:
    from mlxcel_cli.answer_generator import AnswerGenerator

THINKING_SWITCH = "enable_thinking"
"""The variable by which chat templates let a model think, or not."""


class EngineBackend:
    """At most one model; freed before the next one is loaded."""

    def __init__(self) -> None:
        self.generator: AnswerGenerator | None = None

    def load(self, request: ModelRequest, report: Callable[[Progress], None]) -> ModelReport:
        """Find the model, bring it if need be, and load it.

        Raises:
            ModelNotFound, PullFailed: there is no such model; the one before it is still loaded.
            EngineError: it is broken, or would not fit; none is loaded.
        """
        started_s = time.perf_counter()
        # MLX takes long to import: here no front end waits for it.
        from mlxcel_cli.answer_generator import AnswerGenerator
        from mlxcel_cli.model_loading import load_model

        ready = load_model(request, report, when_found=self.unload)
        self.generator = AnswerGenerator(ready)
        facts = ready.loaded.facts
        return ModelReport(
            name=facts.name,
            path=facts.path,
            load_s=time.perf_counter() - started_s,
            has_template=ready.loaded.template is not None,
            notes=ready.notes,
            warnings=ready.warnings,
            device=ready.device,
            context_tokens=ready.engine.context_tokens,
            sampling=ready.loaded.generation,
            can_switch_thinking=THINKING_SWITCH in (facts.template_text or ""),
        )

    def answer(self, request: AnswerRequest) -> Iterator[AnswerEvent]:
        """Answer one prompt; closing the iterator cancels. The last event is AnswerDone.

        Raises:
            EngineError: the prompt does not fit, the template refuses it, the backend fails.
        """
        if self.generator is None:
            raise EngineClosed("no model is loaded")
        return self.generator.answer(request)

    def unload(self) -> None:
        """Free the model; idempotent."""
        generator, self.generator = self.generator, None
        if generator is not None:
            generator.ready.close()
