"""A model for scripts: a string, chat messages or token ids in, text out.

One scheduler serves every call. A single prompt is a batch of one, and streams that are open at the
same time share their steps.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack

import mlx.core as mx

from engine.errors import EngineClosed, EngineError, InvalidParams
from engine.events import Delta, Done, Event, Failed, Started
from engine.finish import FinishCause
from engine.loading import OpenedModel, OpenOptions, open_model
from engine.models.chat_sampling import chat_sampling
from engine.models.progress import ProgressReport, no_report
from engine.outcome import Timings, TokenLogprobs, Usage
from engine.params import SamplingParams, SequenceParams, SpeculationParams
from engine.prefill import PrefillPacer
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.scheduler import BatchScheduler
from engine.scheduler.settings import LookupSettings, SchedulerSettings
from engine.scheduler.state import Limits
from engine.text.answer_text import AnswerText, TextDelta, ThinkingMarks
from engine.text.prompt import Prompt, read_prompt
from engine.text.rendered import RenderedPrompt

PARALLEL = 8
"""Most rows of one forward; the other prompts of a batch wait."""

MOST_WAITING = 2**31


class GenerateOptions(TypedDict, total=False):
    """How to answer: keyword arguments of every call that does."""

    max_tokens: int | None
    """Most tokens to write; None: until the model ends or the context is full."""
    stop: str | Sequence[str]
    """Strings that end the answer and are left out of it."""
    sampling: SamplingParams | None
    """None: what the model's authors recommend, with a temperature of 0.7 and top-p of 0.95 where
    they say nothing; ``SamplingParams()`` is greedy."""
    prompt_lookup: bool
    """Whether to draft tokens by copying from the context: faster, and never another text."""
    system: str | None
    """A system message before the prompt."""
    raw: bool
    """Whether a string is the model's input as it is, without the chat template."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    text: str
    """The answer without its reasoning."""
    reasoning: str
    """What the model wrote between the marks of its reasoning."""
    finish: FinishCause
    usage: Usage
    timings: Timings
    seed: int
    """Gives the same answer again, if the sampling parameters ask for it."""
    tokens: tuple[int, ...]
    """The ids that were written, without an end token."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One a token where ``sampling.logprobs`` asks for them."""


class AnswerStream(Iterator[TextDelta]):
    """The deltas of one answer. Closing it, or dropping it, cancels what is left of the answer."""

    def __init__(self, deltas: Generator[TextDelta, None, Answer]) -> None:
        self._deltas = deltas
        self.answer: Answer | None = None
        """The whole answer, once the last delta was taken."""

    def __next__(self) -> TextDelta:
        try:
            return next(self._deltas)
        except StopIteration as end:
            self.answer = self.answer or end.value
            raise

    def close(self) -> None:
        """Free the row now; idempotent."""
        self._deltas.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class LanguageModel:
    """A loaded model; made by `load`. All calls come from the thread that made it.

    Every call raises EngineError for what goes wrong: InvalidParams names the argument,
    EngineClosed says that the model is closed.

    Attributes:
        name: what it is called.
        context_tokens: most tokens of prompt and answer together.
        tokenizer: turns text into token ids and back.
        notes: what was chosen when it was loaded, and why.
        warnings: what makes it slower or worse than it could be.
    """

    def __init__(self, opened: OpenedModel) -> None:
        self.name = opened.loaded.facts.name
        self.context_tokens = opened.engine.context_tokens
        self.tokenizer = opened.loaded.tokenizer
        self.notes = opened.notes
        self.warnings = opened.warnings
        self._thread = threading.get_ident()
        self._opened: OpenedModel | None = opened
        self._widths_file = opened.use_kept_widths(SpeculationParams())
        self._scheduler = BatchScheduler(
            opened.engine,
            _scheduler_settings(opened),
            pacer=PrefillPacer(fixed_tokens=opened.options.prefill_chunk),
        )
        self._running: dict[str, _RunningAnswer] = {}
        self._numbers = count(1)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> str:
        """The text of the answer to one prompt."""
        return self.answer(prompt, **options).text

    def answer(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
        """The answer to one prompt."""
        (answer,) = self.batch([prompt], **options)
        return answer

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AnswerStream:
        """The answer to one prompt as it is written, from the first delta that is asked for."""
        return AnswerStream(self._deltas(self._new(prompt, options)))

    def batch(self, prompts: Sequence[Prompt], **options: Unpack[GenerateOptions]) -> list[Answer]:
        """The answers to prompts that share every forward, in the order of the prompts.

        Raises:
            EngineError: one of them failed, and the others are cancelled.
        """
        running = [self._new(prompt, options) for prompt in prompts]
        with self._submitted(running):
            while any(one.result() is None for one in running):
                self._tick()
        return [answer for one in running if (answer := one.result()) is not None]

    def close(self) -> None:
        """Free the model and its memory; idempotent."""
        if self._opened is None:
            return
        opened = self._on_thread()
        for id_ in self._running:
            self._scheduler.cancel(id_)
        self._running.clear()
        self._scheduler.close()
        opened.close()
        del opened, self._scheduler
        self._opened = None
        gc.collect()
        mx.clear_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- internals

    def _on_thread(self) -> OpenedModel:
        """The model, for a call that may use it."""
        if self._opened is None:
            raise EngineClosed(f"the model {self.name} is closed")
        if threading.get_ident() != self._thread:
            raise EngineError("a model answers only on the thread that loaded it")
        return self._opened

    def _new(self, prompt: Prompt, options: GenerateOptions) -> _RunningAnswer:
        unknown = options.keys() - GenerateOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"there is no keyword argument {min(unknown)!r}")
        loaded = self._on_thread().loaded
        id_ = str(next(self._numbers))
        sampling = options.get("sampling")
        if sampling is None:
            sampling = chat_sampling(loaded.generation)
        stop = options.get("stop", ())
        read = read_prompt(
            prompt, loaded.template, raw=options.get("raw", False), system=options.get("system")
        )
        marks: tuple[ThinkingMarks, ...] = ()
        if isinstance(read, RenderedPrompt):
            ids, marks = loaded.tokenizer.encode_rendered(read), read.thinking_marks
            text = AnswerText(marks, inside=read.opens_thinking, begun=read.continues_thinking)
            continues = read.continues_text
        else:
            ids, text, continues = read, AnswerText(), True
        params = SequenceParams(
            ids,
            sampling,
            max_tokens=options.get("max_tokens"),
            speculation=SpeculationParams() if options.get("prompt_lookup") else None,
        )
        keep = tuple(mark for one in marks for mark in (one.open, one.close))
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return _RunningAnswer(
            ScheduledRequest(
                id_, params, stops, keep_texts=keep, continues_text=continues, cache=None
            ),
            text,
        )

    def _deltas(self, one: _RunningAnswer) -> Generator[TextDelta, None, Answer]:
        with self._submitted([one]):
            while True:
                while one.deltas:
                    yield one.deltas.popleft()
                if (answer := one.result()) is not None:
                    return answer
                self._tick()

    @contextmanager
    def _submitted(self, running: Sequence[_RunningAnswer]) -> Iterator[None]:
        """Answers that run inside the block; those that are not over behind it are cancelled."""
        self._on_thread()
        self._scheduler.submit(*(one.request for one in running))
        self._running.update((one.request.id, one) for one in running)
        try:
            yield
        finally:
            for one in running:
                if self._running.pop(one.request.id, None) is not None:
                    self._scheduler.cancel(one.request.id)
            if self._opened is not None and any(one.request.params.speculation for one in running):
                self._keep_widths()

    def _tick(self) -> None:
        """One step of all that runs."""
        self._on_thread()
        for event in self._scheduler.tick():
            if (one := self._running.get(event.id)) is not None:
                one.take(event)

    def _keep_widths(self) -> None:
        """Keep what verify rounds cost here, once it was measured."""
        costs = self._scheduler.stats().width_costs
        if self._widths_file is not None and costs is not None:
            self._widths_file.save(costs)
            self._widths_file = None


class _RunningAnswer:
    """What one request has come to so far."""

    def __init__(self, request: ScheduledRequest, text: AnswerText) -> None:
        self.request = request
        self.deltas: deque[TextDelta] = deque()
        """Those that nobody has taken yet."""
        self._text = text
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._result: Answer | EngineError | None = None

    def result(self) -> Answer | None:
        """The answer; None while it is being written.

        Raises:
            EngineError: it failed.
        """
        if isinstance(self._result, EngineError):
            raise self._result
        return self._result

    def take(self, event: Event) -> None:
        """Take what the scheduler emitted for it."""
        match event:
            case Started(lookup_refused=reason) if reason is not None:
                self._result = InvalidParams("prompt_lookup", reason.problem)
            case Delta():
                self._tokens += event.tokens
                self._logprobs += event.logprobs
                self.deltas += self._text.push(event.text, event.completion_tokens)
            case Failed():
                self._result = event.error
            case Done():
                self.deltas += self._text.flush(event.usage.completion_tokens)
                self._result = self._result or self._answer(event)
            case _:
                pass

    def _answer(self, done: Done) -> Answer:
        return Answer(
            self._text.text,
            self._text.reasoning,
            done.finish,
            done.usage,
            done.timings,
            done.seed,
            tuple(self._tokens),
            tuple(self._logprobs),
        )


def load(
    name: str | Path | None = None,
    options: OpenOptions | None = None,
    *,
    report: ProgressReport = no_report,
) -> LanguageModel:
    """Load a model; it is downloaded or converted first, if it has to be.

    Args:
        name: a folder, a GGUF file, the name of a model that is here, or ``owner/name`` of the
            hub; None: the starter model.
        options: how it is found and loaded.
        report: takes how far it is, on this thread.

    Raises:
        EngineError: there is no such model, it is broken, or it would not fit the memory.
    """
    found = str(name.expanduser().absolute()) if isinstance(name, Path) else name
    return LanguageModel(open_model(found, options or OpenOptions(), report))


def _scheduler_settings(opened: OpenedModel) -> SchedulerSettings:
    lookup = LookupSettings(
        None,
        builds_kernels=opened.device != "cpu",
        width_costs=opened.width_costs,
        measures_short=False,
    )
    return SchedulerSettings(
        Limits(parallel=PARALLEL),
        MOST_WAITING,
        opened.kv_budget_tokens(),
        lookup=lookup,
        is_pipelined=opened.options.is_pipelined,
    )
