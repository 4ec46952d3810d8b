"""The arms that the engine itself offers `engine.parity`; front ends add theirs."""

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.errors import InvalidParams, UnsupportedModel
from engine.lookup.widths import WidthCosts
from engine.models.cpu_forms import stock_forms
from engine.models.reference import reference_tokens
from engine.outcome import SeqId
from engine.params import LookupPolicy, SamplingParams, SequenceParams, SpeculationParams
from engine.parity import Arm, ArmUnfit, ParityRequest
from engine.parity_engine import NotingEngine
from engine.parity_scheduler import SCHEDULER_ARMS
from engine.prefill import PrefillPacer, plan_prefill
from engine.session import Session

if TYPE_CHECKING:
    from engine.models.load import LoadedModel

RESTORED_EVERY = 8
"""Tokens that the arm of snapshots writes in one engine before it goes on in another."""


def engine_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """One request on an engine of its own, as ``generate`` and ``chat`` run it."""
    return _session_tokens(loaded, request, request.params)


def sync_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The same without a step in flight."""
    return _session_tokens(loaded, request, request.params, pipelined=False)


def lookup_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The same with prompt lookup that drafts whenever it can.

    Raises:
        ArmUnfit: the family is not eligible.
    """
    speculation = SpeculationParams(policy=LookupPolicy.FIXED)
    params = replace(request.params, speculation=speculation)
    try:
        return _session_tokens(loaded, request, params)
    except InvalidParams as error:
        raise ArmUnfit(str(error)) from error


def batch_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The request among rows of other lengths and samplers that come and go beside it."""
    engine = NotingEngine(loaded, request)
    traffic = _Traffic(engine, request)
    company = [traffic.next_row() for _ in range(request.batch - 1)]
    seq = _begun(engine, request.params, request)
    live = [one for one in (*company, seq) if one is not None and not engine.is_closed(one)]
    ticket = engine.submit(live) if live else None
    while ticket is not None and seq in live:
        fresh = [traffic.next_row()] if len(live) < request.batch else []
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


def cached_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The request over the KV that a row before it left, as a prompt cache would give it.

    Raises:
        ArmUnfit: the family's KV cannot be taken out, or the prompt is too short to share any.
    """
    if len(request.prompt_ids) < 2:
        raise ArmUnfit("the prompt is too short to be cached")
    engine = NotingEngine(loaded, request)
    body = replace(request.params, max_tokens=1, prompt_ids=request.prompt_ids[:-1])
    last = replace(body, prompt_ids=(*body.prompt_ids, body.prompt_ids[-1]))
    source = engine.open(last)
    *pieces, _ = plan_prefill(prompt_tokens=len(last.prompt_ids), chunk_tokens=request.chunk_tokens)
    for piece in pieces:
        engine.prefill(source, piece)
    try:
        prefix = engine.detach(source)
    except UnsupportedModel as error:
        raise ArmUnfit(str(error)) from error
    engine.close(source)
    seq = engine.adopt(request.params, prefix)
    return _finished(engine, seq, request)


def restored_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The request handed from engine to engine in the midst of its answer.

    Raises:
        ArmUnfit: the family's KV cannot be taken out.
    """
    engine = NotingEngine(loaded, request)
    seq = _begun(engine, request.params, request)
    while not engine.is_closed(seq):
        for _ in range(RESTORED_EVERY):
            if _stepped(engine, seq):
                return engine.answer_to(seq)
        try:
            snapshot = engine.snapshot(seq)
        except UnsupportedModel as error:
            raise ArmUnfit(str(error)) from error
        engine = NotingEngine(loaded, request)
        seq = engine.restore(snapshot)
    return engine.answer_to(seq)


def mlx_lm_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """What mlx-lm's own generation loop writes.

    Raises:
        ArmUnfit: the case draws: mlx-lm's random numbers are others.
    """
    sampling = request.case.sampling
    if not sampling.greedy or sampling.has_dry:
        raise ArmUnfit("mlx-lm draws from other random numbers and has no DRY")
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


ENGINE_ARMS: MappingProxyType[str, Arm] = MappingProxyType(
    {
        "engine": engine_tokens,
        "sync": sync_tokens,
        "batch": batch_tokens,
        "lookup": lookup_tokens,
        "cached": cached_tokens,
        "restored": restored_tokens,
        **SCHEDULER_ARMS,
        "mlx-lm": mlx_lm_tokens,
    }
)
"""By name; the first is what the others are held against."""


def _session_tokens(
    loaded: "LoadedModel",
    request: ParityRequest,
    params: SequenceParams,
    *,
    pipelined: bool = True,
) -> tuple[int, ...]:
    engine = NotingEngine(loaded, request)
    draft = 0 if params.speculation is None else params.speculation.max_draft
    session = Session(
        engine,
        pacer=PrefillPacer(fixed_tokens=request.chunk_tokens),
        pipelined=pipelined,
        # Which drafts pay is not asked here, so nothing has to be measured.
        width_costs=WidthCosts((1.0,) * (draft + 1)),
    )
    for _ in session.generate(params):
        pass
    return engine.answer_to(SeqId(0))


def _begun(engine: NotingEngine, params: SequenceParams, request: ParityRequest) -> SeqId:
    """A row whose prompt was read; closed if its first token was its last."""
    seq = engine.open(params)
    _read_prompt(engine, seq, len(params.prompt_ids), request.chunk_tokens)
    return seq


def _read_prompt(engine: NotingEngine, seq: SeqId, prompt_tokens: int, chunk_tokens: int) -> None:
    for piece in plan_prefill(
        prompt_tokens=prompt_tokens,
        cached_tokens=engine.cached_tokens(seq),
        chunk_tokens=chunk_tokens,
    ):
        first = engine.prefill(seq, piece).first
        if first is not None and first.error is not None:
            raise first.error
        if first is not None and first.is_final:
            engine.close(seq)


def _stepped(engine: NotingEngine, seq: SeqId) -> bool:
    """One more token; whether it was the last, and the row is closed."""
    (outcome,) = engine.step([seq])
    if outcome.error is not None:
        raise outcome.error
    if outcome.is_final:
        engine.close(seq)
    return outcome.is_final


def _finished(engine: NotingEngine, seq: SeqId, request: ParityRequest) -> tuple[int, ...]:
    _read_prompt(engine, seq, len(request.prompt_ids), request.chunk_tokens)
    while not engine.is_closed(seq):
        _stepped(engine, seq)
    return engine.answer_to(seq)


class _Traffic:
    """Rows beside the one that counts: other lengths, samplers and ends, the same in every run."""

    _SAMPLERS: tuple[Callable[[int], SamplingParams], ...] = (
        lambda number: SamplingParams(temperature=1.0, top_p=0.9, seed=number),
        lambda number: SamplingParams(seed=number),
        lambda number: SamplingParams(temperature=0.7, top_k=20, seed=number),
        lambda number: SamplingParams(repetition_penalty=1.3, frequency_penalty=0.2, seed=number),
    )

    def __init__(self, engine: NotingEngine, request: ParityRequest) -> None:
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
        seq = _begun(self._engine, params, self._request)
        return None if self._engine.is_closed(seq) else seq
