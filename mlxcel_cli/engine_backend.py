"""Answers with the real engine: finds, loads and runs a model, all on the engine thread.

Whatever imports MLX is imported inside the functions: the BLAS has to be chosen before.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from engine.errors import EngineClosed, InvalidParams
from engine.events import PrefillProgress
from engine.models.progress import Progress
from engine.params import SequenceParams
from engine.text.answer_text import AnswerText, TextDelta
from mlxcel_cli.answers import (
    AnswerDone,
    AnswerEvent,
    AnswerRequest,
    LookupRefused,
    ModelReport,
    ModelRequest,
    SamplingDefaults,
)
from mlxcel_cli.prompt_input import PromptInput
from mlxcel_cli.sampling_options import token_biases

if TYPE_CHECKING:
    from engine.lookup.reference import ReferenceText
    from engine.models.load import LoadedModel
    from engine.prompt_cache.cache import PromptCache
    from engine.session import Answer, Session, SessionEvent
    from engine.text.rendered import RenderedPrompt
    from engine.text.tokenizer import Tokenizer
    from mlxcel_cli.model_loading import ReadyModel
    from mlxcel_cli.width_costs import Measured, WidthCostsFile

THINKING_SWITCH = "enable_thinking"
"""The variable by which chat templates let a model think, or not."""


class EngineBackend:
    """One model, one Engine, one Session."""

    def __init__(self) -> None:
        self._ready: ReadyModel | None = None
        self._cache: PromptCache | None = None
        self._cache_home = Path()
        self._blas = ""

    def load(self, request: ModelRequest, report: Callable[[Progress], None]) -> ModelReport:
        """Find the model, bring it if need be, and load it.

        Raises:
            ModelNotFound, PullFailed: there is no such model; the one before it is still loaded.
            EngineError: it is broken, or would not fit; none is loaded.
        """
        started_s = time.perf_counter()
        notes, warnings = choose_blas(request)
        self._cache_home = request.settings.cache_home
        self._blas = notes[0] if notes else ""
        from mlxcel_cli.model_loading import load_model

        self._ready = load_model(request, report, when_found=self.unload)
        loaded = self._ready.loaded
        facts = loaded.facts
        return ModelReport(
            name=facts.name,
            path=facts.path,
            load_s=time.perf_counter() - started_s,
            has_template=loaded.template is not None,
            notes=(*self._ready.notes, *notes),
            warnings=(*self._ready.warnings, *warnings),
            device=self._ready.device,
            context_tokens=self._ready.engine.context_tokens,
            sampling=SamplingDefaults(
                loaded.generation.temperature, loaded.generation.top_p, loaded.generation.top_k
            ),
            can_switch_thinking=THINKING_SWITCH in (facts.template_text or ""),
        )

    def answer(self, request: AnswerRequest) -> Iterator[AnswerEvent]:
        """Answer one prompt; closing the iterator cancels. The last event is AnswerDone.

        Raises:
            EngineError: the prompt does not fit, the template refuses it, the backend fails.
        """
        if self._ready is None:
            raise EngineClosed("no model is loaded")
        from engine.prompt_cache.key import CacheUse
        from engine.session import Answer
        from engine.session import PrefillProgress as Progressed

        loaded = self._ready.loaded
        prompt = render_prompt(loaded, request.prompt)
        params = _sequence_params(loaded.tokenizer, prompt, request)
        text = _answer_text(loaded, prompt, raw=request.prompt.raw is not None)
        if request.reuses_kv:
            known = self._kept(self._ready).covered(params, CacheUse())
            yield PrefillProgress("", known, len(params.prompt_ids))
        if request.prompt.prefill:
            yield text.add(TextDelta(request.prompt.prefill))
        events = self._events(self._ready, params, request)
        with closing(cast("Generator[SessionEvent | LookupRefused, None, None]", events)):
            for event in events:
                if isinstance(event, Progressed):
                    yield PrefillProgress("", event.done_tokens, event.prompt_tokens)
                elif isinstance(event, LookupRefused):
                    yield event
                elif isinstance(event, Answer):
                    yield from text.flush(event.usage.completion_tokens)
                    yield _done(event, text)
                else:
                    yield from text.push(event.text, event.tokens)

    def _events(
        self, ready: "ReadyModel", params: SequenceParams, request: AnswerRequest
    ) -> "Iterator[SessionEvent | LookupRefused]":
        """The session's events; a refused draft is told and left out."""
        cache = self._kept(ready) if request.reuses_kv else None
        started = False
        try:
            references = _references(ready, params, request)
            widths = self._widths(ready, params)
            for event in _closing(ready.session, params, request.stops, cache, references):
                started = True
                yield event
            if widths is not None and ready.session.width_costs is not None:
                widths.save(ready.session.width_costs)
        except InvalidParams as error:
            if started or error.field != "prompt_lookup":
                raise
            yield LookupRefused(error.problem)
            plain = replace(params, speculation=None)
            yield from _closing(ready.session, plain, request.stops, cache)

    def _widths(self, ready: "ReadyModel", params: SequenceParams) -> "WidthCostsFile | None":
        """Where measured widths are to be kept; None when there is nothing to measure.

        On a GPU the measurement also builds the kernels, so each process runs it.
        """
        if params.speculation is None or ready.device != "cpu":
            return None
        from mlxcel_cli.width_costs import WidthCostsFile

        kept = WidthCostsFile(self._cache_home, measured_on(ready, self._blas))
        known = ready.session.width_costs
        if known is None:
            known = ready.session.width_costs = kept.load(params.speculation.max_draft)
        return kept if known is None or known.max_draft < params.speculation.max_draft else None

    def _kept(self, ready: "ReadyModel") -> "PromptCache":
        from engine.prompt_cache.cache import PromptCache
        from engine.prompt_cache.limits import CONVERSATION

        if self._cache is None:
            self._cache = PromptCache(ready.engine, CONVERSATION)
        return self._cache

    def unload(self) -> None:
        """Free the model; idempotent."""
        self._cache = None
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.held.close()


def _closing(
    session: "Session",
    params: SequenceParams,
    stops: Sequence[str],
    cache: "PromptCache | None",
    references: "Sequence[ReferenceText]" = (),
) -> "Iterator[SessionEvent]":
    """A session's events; closing this frees the row on this thread, now."""
    events = session.generate(params, stops=stops, references=references, cache=cache)
    # A generator in truth.
    with closing(cast("Generator[SessionEvent, None, None]", events)):
        yield from events


def measured_on(ready: "ReadyModel", blas: str) -> "Measured":
    """What verify widths of a loaded model depend on."""
    from mlxcel_cli.width_costs import Measured

    facts = ready.loaded.facts
    form = f"{facts.dtype}, {facts.quantization or 'dense'}, {facts.weight_bytes} bytes"
    return Measured(model=f"{facts.path.name}: {form}", device=ready.device, blas=blas)


def _references(
    ready: "ReadyModel", params: SequenceParams, request: AnswerRequest
) -> "list[ReferenceText]":
    if params.speculation is None or not request.lookup_texts:
        return []
    from engine.lookup.reference import ReferenceText

    encode = ready.loaded.tokenizer.encode
    return [
        ReferenceText.from_tokens(name, encode(text), params.speculation)
        for name, text in request.lookup_texts
    ]


def choose_blas(request: ModelRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Notes on the BLAS that was chosen, and a warning if it is the slow one."""
    from engine.runtime.blas import Route, prepare_blas

    machine = request.settings.machine
    # The BLAS that MLX brought sums every row alike, however many rows there are.
    setting = "off" if machine.deterministic else machine.blas
    chosen = prepare_blas(request.settings.cache_home, setting)
    if chosen.route is Route.STOCK:
        why = "; ".join(chosen.notes) or "none was found"
        return (), (f"no fast BLAS is used, answers are slow ({why}); see mlxcel doctor",)
    library = f", {chosen.library}" if chosen.library is not None else ""
    threads = f", {chosen.threads} threads" if chosen.threads is not None else ""
    return (f"BLAS: {chosen.route.value}{library}{threads}", *chosen.notes), ()


def render_prompt(loaded: "LoadedModel", prompt: PromptInput) -> "RenderedPrompt":
    """The prompt as the model reads it.

    Raises:
        TemplateError: the chat template refuses the messages.
    """
    from engine.text.rendered import RenderedPrompt
    from engine.text.template import plain_prompt

    if prompt.raw is not None:
        return RenderedPrompt(prompt.raw)
    messages = list(prompt.messages or ())
    if prompt.prefill:
        messages.append({"role": "assistant", "content": prompt.prefill})
    continued = bool(prompt.prefill)
    if loaded.template is None:
        return plain_prompt(messages, continue_final=continued)
    extra = prompt.template_values
    return loaded.template.render(messages, continue_final=continued, extra=extra)


def _answer_text(loaded: "LoadedModel", prompt: "RenderedPrompt", *, raw: bool) -> AnswerText:
    template = loaded.template
    # A raw prompt has no channels: its text is shown as the model writes it.
    if raw or template is None:
        return AnswerText()
    return AnswerText(template.thinking_marks, inside=template.opens_thinking(prompt))


def _sequence_params(
    tokenizer: "Tokenizer", prompt: "RenderedPrompt", request: AnswerRequest
) -> SequenceParams:
    biases = token_biases(request.biases, tokenizer.encode)
    return SequenceParams(
        prompt_ids=tokenizer.encode_rendered(prompt),
        sampling=replace(request.sampling, logit_bias=biases),
        max_tokens=request.max_tokens,
        context_tokens=request.context_tokens,
        ignore_eos=request.ignore_eos,
        speculation=request.speculation,
    )


def _done(answer: "Answer", text: AnswerText) -> AnswerDone:
    return AnswerDone(
        text=text.text,
        finish=answer.finish.value,
        seed=answer.seed,
        usage=answer.usage,
        timings=answer.timings,
        reasoned=text.reasoned,
        lookup=answer.lookup,
        lookup_dropped=answer.lookup_dropped,
    )
