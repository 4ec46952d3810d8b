"""The rows of an engine: the one mutable record of each running request, and the table of them.

`new_row` is the one place where a request is checked against the model: its token ids and the
bound of its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from engine.errors import ContextOverflow, InvalidParams, RowError, SnapshotError, UnknownSequence
from engine.finish import FinishCause, FinishRules
from engine.kv.pool import CAPACITY_STEP
from engine.kv.storage import Storage
from engine.outcome import SeqId
from engine.params import SequenceParams, seeded
from engine.sampling.row_sampler import RowSampler, SamplerSnapshot
from engine.text.breakers import breaker_ids
from engine.text.row_text import RowText

if TYPE_CHECKING:
    import numpy as np

    from engine.models.load import LoadedModel
    from engine.steps import Ticket


class Phase(Enum):
    """Where a sequence stands."""

    PREFILL = auto()
    DECODE = auto()
    FINISHED = auto()


class RowHooks(Protocol):
    """What a feature may decide for one row; every call sees the committed ids.

    A row with hooks is drawn once its newest token is on the host (the row pipeline).
    """

    def mask(self, ids: Sequence[int]) -> np.ndarray | None:
        """float32[V] added to the logits of the next token; None: nothing."""

    def finish(self, ids: Sequence[int]) -> FinishCause | None:
        """A reason to stop after the newest token: LENGTH or STRUCTURED_STOP."""


@dataclass(frozen=True, slots=True)
class PreemptedRow:
    """A row whose KV was dropped and that waits to be resumed in the same engine.

    Its text side is the very one it had, so that stop strings and characters that were
    incomplete are completed as if it had never stopped.
    """

    params: SequenceParams
    """The request, with the seed it drew and the context bound it had."""
    ids: tuple[int, ...]
    """Prompt and answer so far: what is to be prefilled again."""
    sampler: SamplerSnapshot
    text: RowText | None
    hooks: RowHooks | None


class Row:
    """A request from ``open`` to ``close``.

    The length law: outside a forward, KV holds prompt + written - 1 tokens while the row
    decodes, prompt + written after an end token, and one more for each ticket in flight.
    """

    __slots__ = (
        "failed",
        "hooks",
        "ids",
        "in_flight",
        "lost",
        "params",
        "phase",
        "prompt_tokens",
        "rules",
        "sampler",
        "seq",
        "slot",
        "text",
    )

    def __init__(
        self,
        seq: SeqId,
        params: SequenceParams,
        rules: FinishRules,
        sampler: RowSampler,
        text: RowText | None,
        hooks: RowHooks | None,
    ) -> None:
        self.seq = seq
        self.params = params
        self.rules = rules
        self.sampler = sampler
        self.text = text
        self.hooks = hooks
        self.slot = -1
        """Row of the storage, set by the engine."""
        self.ids: list[int] = list(params.prompt_ids)
        """Prompt and committed answer."""
        self.prompt_tokens = len(params.prompt_ids)
        self.phase = Phase.PREFILL
        self.in_flight: list[Ticket] = []
        """Submitted and not yet collected, oldest first; at most two."""
        self.failed = False
        self.lost: RowError | None = None
        """Why the row is gone without having been in the step that failed."""

    @property
    def written(self) -> int:
        """Tokens of the answer so far."""
        return len(self.ids) - self.prompt_tokens

    @property
    def generated(self) -> list[int]:
        """The answer so far (a copy)."""
        return self.ids[self.prompt_tokens :]

    @property
    def needs_host(self) -> bool:
        """Whether a draw has to wait until the newest token is on the host."""
        return self.hooks is not None or self.sampler.needs_host

    @property
    def appended_ahead(self) -> int:
        """Tokens that its steps in flight appended to its KV."""
        return sum(ticket.appended for ticket in self.in_flight)

    @property
    def resumable_params(self) -> SequenceParams:
        """The request with the bound it really has: a larger context must not move its end."""
        return replace(self.params, context_tokens=self.rules.context_tokens)

    def append(self, token: int) -> None:
        """Add a committed token to the answer; `engine.finish.commit` alone does."""
        self.ids.append(token)

    def finish(self, *, failed: bool = False) -> None:
        """End the row; what it has written stays."""
        self.phase = Phase.FINISHED
        self.failed = self.failed or failed

    def __repr__(self) -> str:
        return (
            f"Row({self.seq}, {self.phase.name}, prompt={self.prompt_tokens}, "
            f"written={self.written}, in_flight={len(self.in_flight)})"
        )


def new_row(
    seq: SeqId,
    params: SequenceParams,
    loaded: LoadedModel,
    *,
    context_tokens: int,
    text: RowText | None,
    hooks: RowHooks | None,
) -> Row:
    """The record of a request that this model can serve: every check that needs the model.

    Args:
        seq: its handle.
        params: the request; a missing seed is drawn here.
        loaded: the model.
        context_tokens: most tokens a row of this engine may hold.
        text: the row's decoder and stop strings.
        hooks: what a feature decides for the row.

    Raises:
        InvalidParams: a token id outside the model's vocabulary.
        ContextOverflow: the prompt leaves no room for an answer.
    """
    check_ids(params, loaded.facts.vocab_size)
    bound = context_bound(params, context_tokens)
    params = seeded(params)
    eos_ids = loaded.eos_ids | params.stop_ids
    rules = FinishRules(
        eos_ids=frozenset() if params.ignore_eos else eos_ids,
        max_tokens=params.max_tokens,
        context_tokens=bound,
        loop=params.loop,
    )
    return Row(seq, params, rules, _sampler(params, eos_ids, loaded), text, hooks)


def check_ids(params: SequenceParams, vocab_size: int) -> None:
    """Refuse ids past the logits width: MLX's CPU backend reads and writes out of bounds.

    Raises:
        InvalidParams: names the field and the id.
    """
    named = (
        ("prompt", params.prompt_ids),
        ("logit_bias", params.sampling.logit_bias),
        ("stop_ids", params.stop_ids),
    )
    for field, ids in named:
        for token in ids:
            if not 0 <= token < vocab_size:
                raise InvalidParams(
                    field, f"token id {token} is outside this model's {vocab_size} tokens"
                )


def context_bound(params: SequenceParams, context_tokens: int) -> int:
    """Most tokens a request's row may hold in an engine of ``context_tokens``.

    Raises:
        ContextOverflow: the prompt leaves no room for an answer.
    """
    bound = context_tokens
    if params.context_tokens is not None:
        bound = min(bound, params.context_tokens)
    if len(params.prompt_ids) >= bound:
        raise ContextOverflow(len(params.prompt_ids), bound)
    return bound


def _sampler(params: SequenceParams, eos_ids: frozenset[int], loaded: LoadedModel) -> RowSampler:
    sampling = params.sampling
    assert sampling.seed is not None
    breakers: tuple[tuple[int, ...], ...] = ()
    if sampling.has_dry:
        breakers = breaker_ids(loaded.tokenizer, sampling.dry_sequence_breakers)
    return RowSampler(
        sampling,
        seed=sampling.seed,
        choice=params.choice,
        vocab_size=loaded.facts.vocab_size,
        eos_ids=eos_ids,
        suppress_eos=params.ignore_eos,
        min_tokens=params.min_tokens,
        prompt_tokens=len(params.prompt_ids),
        dry_breakers=breakers,
    )


def _expected_tokens(row: Row) -> int:
    """Room to make at once: the prompt and the first growth step, not a whole open end."""
    most = row.rules.max_tokens
    return row.prompt_tokens + (CAPACITY_STEP if most is None else min(most, CAPACITY_STEP))


class RowTable:
    """The open rows.

    Args:
        storage: where their KV lives.
        loaded: the model.
        context_tokens: most tokens a row may hold.
    """

    def __init__(self, storage: Storage, loaded: LoadedModel, *, context_tokens: int) -> None:
        self.rows: dict[SeqId, Row] = {}
        self._storage = storage
        self._loaded = loaded
        self._context_tokens = context_tokens
        self._next_seq = 0

    def row(self, seq: SeqId) -> Row:
        """An open row.

        Raises:
            UnknownSequence: there is none of that handle.
        """
        row = self.rows.get(seq)
        if row is None:
            raise UnknownSequence(f"sequence {seq} is not open")
        return row

    def sound_row(self, seq: SeqId) -> Row:
        """An open row whose KV can be trusted.

        Raises:
            SnapshotError: it has failed.
            RowError: its KV was lost, and this is why.
        """
        row = self.row(seq)
        if row.lost is not None:
            raise row.lost
        if row.failed:
            raise SnapshotError("the row has failed: its KV cannot be trusted")
        return row

    def open(self, params: SequenceParams, text: RowText | None, hooks: RowHooks | None) -> Row:
        """A new row (`new_row`) with a place in the storage.

        Raises:
            InvalidParams, ContextOverflow: as `new_row`.
        """
        row = new_row(
            SeqId(self._next_seq),
            params,
            self._loaded,
            context_tokens=self._context_tokens,
            text=text,
            hooks=hooks,
        )
        row.slot = self._storage.open(_expected_tokens(row))
        self._next_seq += 1
        self.rows[row.seq] = row
        return row

    def close(self, seq: SeqId) -> None:
        """Free a row and what it has in flight; closing twice is harmless."""
        row = self.rows.pop(seq, None)
        if row is None:
            return
        # What was appended and never drawn from may hold anything, as a failed row's KV may.
        unread = row.phase is Phase.PREFILL or bool(row.in_flight)
        row.finish()
        row.in_flight.clear()
        if row.lost is None:
            self._storage.close(row.slot, failed=row.failed or unread)

    def fit(self) -> None:
        """Let the storage shrink; rows learn their new slots."""
        moved = self._storage.fit()
        if moved is not None:
            slots = {old: new for new, old in enumerate(moved)}
            for row in self.rows.values():
                if row.lost is None:
                    row.slot = slots[row.slot]

    def lose_all(self, error: RowError) -> None:
        """The shared arrays cannot be computed any more: the KV of every row is gone."""
        for row in self.rows.values():
            row.lost = error
            row.failed = True
        self._storage.reset()
