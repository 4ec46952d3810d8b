"""The variants of ``mlxcel parity`` that answer with an engine of their own, and mlx-lm's loop."""

from collections.abc import Callable
from dataclasses import replace

from engine.engine import Engine
from engine.errors import InternalFault, UnsupportedModel
from engine.events import Delta, Done, Started
from engine.lookup.widths import WidthCosts
from engine.models.cpu_forms import stock_forms
from engine.models.load import LoadedModel
from engine.models.reference import reference_tokens
from engine.outcome import SeqId
from engine.params import LookupPolicy, SamplingParams, SequenceParams, SpeculationParams
from engine.prefill import PrefillPacer, plan_prefill
from engine.prompt_cache.cache import PromptCache
from engine.prompt_cache.limits import CacheLimits
from engine.session import Session, SessionEvent
from mlxcel_cli.parity.comparison import ParityRequest, VariantUnfit

RESTORED_EVERY = 8
"""Tokens that the snapshot variant writes in one engine before it continues in another."""


class RecordingEngine(Engine):
    """An engine that keeps the answers of the rows it closes.

    Args:
        loaded: the model.
        request: what its rows answer; the length of its prompt says where answers begin.
    """

    def __init__(self, loaded: LoadedModel, request: ParityRequest) -> None:
        super().__init__(loaded, context_tokens=request.context_tokens)
        self._prompt_tokens = len(request.prompt_ids)
        self._closed: dict[SeqId, tuple[int, ...]] = {}

    def close(self, seq: SeqId) -> None:
        """Record the row's ids, then free it."""
        if not self.is_closed(seq):
            self._closed[seq] = self.ids(seq)
        super().close(seq)

    def is_closed(self, seq: SeqId) -> bool:
        """Whether the row was closed here."""
        return seq in self._closed

    def answer_to(self, seq: SeqId) -> tuple[int, ...]:
        """What a closed row of the request wrote."""
        return self._closed[seq][self._prompt_tokens :]

    @property
    def last_answer(self) -> tuple[int, ...]:
        """What the row of the request that was closed last wrote."""
        return self.answer_to(next(reversed(self._closed)))


def engine_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """One request on an engine of its own, as ``generate`` and ``chat`` run it."""
    return _answers(loaded, request)[0]


def sync_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The same without a step in flight."""
    return _answers(loaded, request, pipelined=False)[0]


def lookup_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The same with prompt lookup that drafts whenever it can.

    Raises:
        VariantUnfit: no draft was made: the family is not eligible, or nothing in the text repeats.
    """
    speculation = SpeculationParams(policy=LookupPolicy.FIXED)
    tokens, started, done = _answers(loaded, request, speculation=speculation)
    if started.lookup_refused is not None:
        raise VariantUnfit(started.lookup_refused.sentence)
    if done.lookup is None or not done.lookup.drafted_rounds:
        raise VariantUnfit("nothing was drafted")
    return tokens


def cache_miss_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The same with an empty prompt cache."""
    return _answers(loaded, request, cached_times=1)[0]


def cache_hit_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The request once more, over what it left in the prompt cache.

    Raises:
        VariantUnfit: nothing could be taken over.
    """
    tokens, started, _ = _answers(loaded, request, cached_times=2)
    if not started.cached_tokens:
        raise VariantUnfit("the prompt cache took nothing over")
    return tokens


def batch_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The request in a batch with rows of other lengths and samplers, which come and go."""
    engine = RecordingEngine(loaded, request)
    others = _OtherRows(engine, request)
    company = [others.next_row() for _ in range(request.batch - 1)]
    seq = _prefilled(engine, request.params, request)
    live = [one for one in (*company, seq) if one is not None and not engine.is_closed(one)]
    ticket = engine.submit(live) if live else None
    while ticket is not None and seq in live:
        fresh = [others.next_row()] if len(live) < request.batch else []
        joining = [one for one in fresh if one is not None]
        ahead = [*filter(engine.wants_step, live), *joining]
        later = engine.submit(ahead) if ahead else None
        for outcome in engine.collect(ticket):
            if outcome.error is not None:
                raise outcome.error
            if outcome.is_final:
                live.remove(outcome.seq)
                engine.close(outcome.seq)
        live += joining
        ticket = later
    for one in live:
        engine.close(one)
    return engine.answer_to(seq)


def cached_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The request over the KV that a row before it left, as a prompt cache would give it.

    Raises:
        VariantUnfit: the family's KV cannot be taken out, or the prompt is too short to share any.
    """
    if len(request.prompt_ids) < 2:
        raise VariantUnfit("the prompt is too short to be cached")
    engine = RecordingEngine(loaded, request)
    body = replace(request.params, max_tokens=1, prompt_ids=request.prompt_ids[:-1])
    last = replace(body, prompt_ids=(*body.prompt_ids, body.prompt_ids[-1]))
    source = engine.open(last)
    *chunks, _ = plan_prefill(prompt_tokens=len(last.prompt_ids), chunk_tokens=request.chunk_tokens)
    for chunk in chunks:
        engine.prefill(source, chunk)
    try:
        prefix = engine.transfer.export_prefix(source)
    except UnsupportedModel as error:
        raise VariantUnfit(str(error)) from error
    engine.close(source)
    seq = engine.transfer.open_with_prefix(request.params, prefix)
    return _finished(engine, seq, request)


def restored_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The request moved from engine to engine in the middle of its answer.

    Raises:
        VariantUnfit: the family's KV cannot be taken out.
    """
    engine = RecordingEngine(loaded, request)
    seq = _prefilled(engine, request.params, request)
    while not engine.is_closed(seq):
        for _ in range(RESTORED_EVERY):
            if _stepped(engine, seq):
                return engine.answer_to(seq)
        try:
            snapshot = engine.transfer.snapshot(seq)
        except UnsupportedModel as error:
            raise VariantUnfit(str(error)) from error
        engine = RecordingEngine(loaded, request)
        seq = engine.transfer.restore(snapshot)
    return engine.answer_to(seq)


def mlx_lm_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """What mlx-lm's own generation loop writes.

    Raises:
        VariantUnfit: the case draws: mlx-lm's random numbers are others.
    """
    sampling = request.case.sampling
    if not sampling.greedy or sampling.has_dry:
        raise VariantUnfit("mlx-lm draws from other random numbers and has no DRY")
    size = sampling.repetition_context_size
    penalties: dict[str, float] = {}
    if sampling.has_penalties:
        for name in ("repetition", "frequency", "presence"):
            penalties[f"{name}_penalty"] = getattr(sampling, f"{name}_penalty")
            penalties[f"{name}_context_size"] = size
    with stock_forms():
        written = reference_tokens(
            loaded.model,
            request.prompt_ids,
            max_tokens=request.max_tokens,
            eos_ids=loaded.eos_ids,
            chunk_tokens=request.chunk_tokens,
            penalties=penalties,
        )
    return tuple(written)


def _answers(
    loaded: LoadedModel,
    request: ParityRequest,
    *,
    pipelined: bool = True,
    speculation: SpeculationParams | None = None,
    cached_times: int = 0,
) -> tuple[tuple[int, ...], Started, Done]:
    """The last of one or more answers to the request, with its first and its last event.

    Args:
        loaded: the model.
        request: what is answered.
        pipelined: whether a step is submitted before the one before is read.
        speculation: of prompt lookup.
        cached_times: how often it is answered over one prompt cache; 0: once, without a cache.

    Raises:
        EngineError: it failed.
        InternalFault: the events and the engine disagree.
    """
    engine = RecordingEngine(loaded, request)
    session = Session(
        engine,
        pacer=PrefillPacer(fixed_tokens=request.chunk_tokens),
        pipelined=pipelined,
        # Drafts are made whatever they cost, so nothing has to be measured.
        width_costs=WidthCosts((1.0,) * (SpeculationParams().max_draft + 1)),
    )
    params = replace(request.params, speculation=speculation)
    cache = PromptCache(engine, CacheLimits(min_tokens=1)) if cached_times else None
    events: list[SessionEvent] = []
    for _ in range(max(cached_times, 1)):
        events = list(session.generate(params, cache=cache))
    tokens = tuple(one for event in events if isinstance(event, Delta) for one in event.tokens)
    started, done = events[0], events[-1]
    assert isinstance(started, Started)
    assert isinstance(done, Done)
    if tokens != engine.last_answer:
        raise InternalFault(ValueError("the session sent other tokens than the engine wrote"))
    return tokens, started, done


def _prefilled(engine: RecordingEngine, params: SequenceParams, request: ParityRequest) -> SeqId:
    """A row that was prefilled; closed if its first token was its last."""
    seq = engine.open(params)
    _prefill(engine, seq, len(params.prompt_ids), request.chunk_tokens)
    return seq


def _prefill(engine: RecordingEngine, seq: SeqId, prompt_tokens: int, chunk_tokens: int) -> None:
    for chunk in plan_prefill(
        prompt_tokens=prompt_tokens,
        cached_tokens=engine.cached_tokens(seq),
        chunk_tokens=chunk_tokens,
    ):
        first = engine.prefill(seq, chunk).first
        if first is not None and first.error is not None:
            raise first.error
        if first is not None and first.is_final:
            engine.close(seq)


def _stepped(engine: RecordingEngine, seq: SeqId) -> bool:
    """One more token; whether it was the last, and the row is closed."""
    (outcome,) = engine.step([seq])
    if outcome.error is not None:
        raise outcome.error
    if outcome.is_final:
        engine.close(seq)
    return outcome.is_final


def _finished(engine: RecordingEngine, seq: SeqId, request: ParityRequest) -> tuple[int, ...]:
    _prefill(engine, seq, len(request.prompt_ids), request.chunk_tokens)
    while not engine.is_closed(seq):
        _stepped(engine, seq)
    return engine.answer_to(seq)


class _OtherRows:
    """The batch variant's other rows: lengths, samplers and ends are the same in every run."""

    _SAMPLERS: tuple[Callable[[int], SamplingParams], ...] = (
        lambda number: SamplingParams(temperature=1.0, top_p=0.9, seed=number),
        lambda number: SamplingParams(seed=number),
        lambda number: SamplingParams(temperature=0.7, top_k=20, seed=number),
        lambda number: SamplingParams(repetition_penalty=1.3, frequency_penalty=0.2, seed=number),
    )

    def __init__(self, engine: RecordingEngine, request: ParityRequest) -> None:
        self._engine = engine
        self._request = request
        self._number = 0

    def next_row(self) -> SeqId | None:
        """A row that decodes; None where its first token ended it."""
        number = self._number
        self._number += 1
        ids = self._request.prompt_ids
        turned = ids[number % len(ids) :] + ids[: number % len(ids)]
        params = SequenceParams(
            turned[: 1 + 13 * (number + 1) % len(ids)],
            sampling=self._SAMPLERS[number % len(self._SAMPLERS)](number),
            max_tokens=3 + 7 * number % 17,
        )
        seq = _prefilled(self._engine, params, self._request)
        return None if self._engine.is_closed(seq) else seq
