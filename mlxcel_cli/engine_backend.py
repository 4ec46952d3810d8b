"""Answers with the real engine: finds, loads and runs a model, all on the engine thread.

Whatever imports MLX is imported inside the functions: the BLAS has to be chosen before.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import EngineClosed
from engine.models.progress import Progress
from engine.params import SequenceParams
from mlxcel_cli.answers import (
    AnswerEvent,
    AnswerRequest,
    Done,
    ModelReport,
    ModelRequest,
    Piece,
    PromptRead,
)
from mlxcel_cli.prompt_input import PromptInput

if TYPE_CHECKING:
    from engine.models.load import LoadedModel
    from engine.session import Answer, Session
    from engine.text.rendered import RenderedPrompt
    from engine.text.tokenizer import Tokenizer


class EngineBackend:
    """One model, one Engine, one Session."""

    def __init__(self) -> None:
        self._loaded: LoadedModel | None = None
        self._session: Session | None = None

    def load(self, request: ModelRequest, report: Callable[[Progress], None]) -> ModelReport:
        """Find the model, bring it if need be, and load it.

        Raises:
            EngineError: there is no such model, it is broken, or it would not fit.
        """
        _prepare_blas(request)
        from mlxcel_cli.model_loading import load_model

        started_s = time.perf_counter()
        self._loaded, self._session = load_model(request, report)
        facts = self._loaded.facts
        return ModelReport(
            name=facts.name,
            path=facts.path,
            load_s=time.perf_counter() - started_s,
            has_template=self._loaded.template is not None,
            notes=facts.notes,
        )

    def answer(self, request: AnswerRequest) -> Iterator[AnswerEvent]:
        """Answer one prompt; closing the iterator cancels. The last event is Done.

        Raises:
            EngineError: the prompt does not fit, the template refuses it, the backend fails.
        """
        if self._loaded is None or self._session is None:
            raise EngineClosed("no model is loaded")
        prompt = _render(self._loaded, request.prompt)
        params = _sequence_params(self._loaded.tokenizer, prompt, request)
        yield from _answer(self._session, params, request, prompt)

    def unload(self) -> None:
        """Free the model; idempotent."""
        self._session = None
        self._loaded = None


def _prepare_blas(request: ModelRequest) -> None:
    from engine.runtime.blas import prepare_blas

    machine = request.settings.machine
    prepare_blas(request.settings.cache_home, machine.blas, None)


def _render(loaded: "LoadedModel", prompt: PromptInput) -> "RenderedPrompt":
    from engine.text.rendered import RenderedPrompt
    from engine.text.template import plain_prompt

    if prompt.raw is not None:
        return RenderedPrompt(prompt.raw)
    messages = list(prompt.messages or ())
    if prompt.prefill:
        messages.append({"role": "assistant", "content": prompt.prefill})
    if loaded.template is None:
        return plain_prompt(messages)
    return loaded.template.render(
        messages,
        add_generation_prompt=not prompt.prefill,
        continue_final=bool(prompt.prefill),
    )


def _sequence_params(
    tokenizer: "Tokenizer", prompt: "RenderedPrompt", request: AnswerRequest
) -> SequenceParams:
    biases: dict[int, float] = {}
    for token, value in request.biases:
        ids: Sequence[int] = (token,) if isinstance(token, int) else tokenizer.encode(token)
        for one in ids:
            biases[one] = biases.get(one, 0.0) + value
    return SequenceParams(
        prompt_ids=tokenizer.encode_rendered(prompt),
        sampling=replace(request.sampling, logit_bias=biases),
        max_tokens=request.max_tokens,
        context_tokens=request.context_tokens,
        ignore_eos=request.ignore_eos,
    )


def _answer(
    session: "Session", params: SequenceParams, request: AnswerRequest, prompt: "RenderedPrompt"
) -> Iterator[AnswerEvent]:
    from engine.session import Answer, PrefillProgress

    shown = _Shown(request, prompt)
    for event in session.generate(params, stops=request.stops):
        if isinstance(event, PrefillProgress):
            yield PromptRead(event.done_tokens, event.prompt_tokens)
        elif isinstance(event, Answer):
            yield from shown.flush()
            yield shown.done(event)
        else:
            yield from shown.push(event.text)


class _Shown:
    """Parts the text that comes into answer and reasoning, and keeps the answer."""

    def __init__(self, request: AnswerRequest, prompt: "RenderedPrompt") -> None:
        from engine.text.thinking import ThinkingFilter

        # A raw prompt has no channels: its text is shown as the model writes it.
        raw = request.prompt.raw is not None
        self._filter = None if raw else ThinkingFilter.for_prompt(prompt)
        self._prefill = request.prompt.prefill
        self._text: list[str] = []
        self._reasoned = False

    def push(self, text: str) -> Iterator[Piece]:
        if self._prefill:
            yield self._keep(self._prefill)
            self._prefill = ""
        if self._filter is None:
            yield self._keep(text)
            return
        for part in self._filter.push(text):
            yield self._part(part.text, is_reasoning=part.is_reasoning)

    def flush(self) -> Iterator[Piece]:
        yield from self.push("")
        if self._filter is not None:
            for part in self._filter.flush():
                yield self._part(part.text, is_reasoning=part.is_reasoning)

    def done(self, answer: "Answer") -> Done:
        return Done(
            text="".join(self._text),
            finish=None if answer.finish is None else answer.finish.value,
            seed=answer.seed,
            usage=answer.usage,
            timings=answer.timings,
            reasoned=self._reasoned,
        )

    def _part(self, text: str, *, is_reasoning: bool) -> Piece:
        if is_reasoning:
            self._reasoned = True
            return Piece(text, is_reasoning=True)
        return self._keep(text)

    def _keep(self, text: str) -> Piece:
        self._text.append(text)
        return Piece(text)
