"""Dispatching forwards and draws: from host ints and tokens on the device to lazy arrays.

Nothing here waits for the device. Inputs of a step are built from plain host values, so that
every rank of a distributed run could replay them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from engine import guard
from engine.errors import EvalFailed, HookFailed
from engine.finish import HOOK_ERRORS
from engine.kv.storage import Storage
from engine.rows import Phase, Row, RowHooks
from engine.sampling.plan import ChainPrograms, Draw, DrawPlan, DrawRow, draw

if TYPE_CHECKING:
    from engine.steps import Ticket

Drafts = Mapping[Row, Sequence[int]]
"""What is fed to some rows behind the newest token of each; empty: that token alone."""


class Forwards:
    """Runs a model over the rows of a storage.

    Args:
        model: an mlx-lm model.
        storage: where the rows' KV lives.
        programs: compiled sampling chains; None: they run uncompiled, as a CPU should.
    """

    def __init__(self, model: Any, storage: Storage, programs: ChainPrograms | None = None) -> None:
        self._model = model
        self._storage = storage
        self._programs = programs
        self._plan: DrawPlan | None = None
        self._planned: tuple[int, ...] = ()

    def of_row(self, row: Row, tokens: Sequence[int]) -> mx.array:
        """float[L, V]: logits after each of ``tokens``, appended to one row."""
        fed = mx.array([tokens], mx.int32)
        with self._storage.one(row.slot, len(tokens)) as caches:
            logits: mx.array = self._model(fed, cache=caches)
        return logits[0]

    def of_drafts(self, drafts: Drafts) -> mx.array:
        """float[N, V]: logits after each of [newest token, *draft], row by row, in one forward.

        One row is a view of the storage. Several are as wide as the widest of them; the shorter
        ones repeat their last token, which is never seen.

        Raises:
            EvalFailed: the model gave logits of another shape; they are appended all the same.
        """
        fed = {row: [row.ids[-1], *draft] for row, draft in drafts.items()}
        if len(fed) == 1:
            ((row, tokens),) = fed.items()
            logits = self.of_row(row, tokens)
            return _shaped(logits, len(tokens))
        width = max(map(len, fed.values()))
        block = [[0] * width] * self._storage.rows
        for row, tokens in fed.items():
            block[row.slot] = tokens + tokens[-1:] * (width - len(tokens))
        with self._storage.padded({row.slot: len(fed[row]) for row in fed}) as caches:
            logits = self._model(mx.array(block, mx.int32), cache=caches)
        logits = _shaped(logits, len(block), width).reshape(-1, logits.shape[-1])
        places = [row.slot * width + i for row in fed for i in range(len(fed[row]))]
        return logits if places == list(range(logits.shape[0])) else logits[mx.array(places)]

    def layout(self, rows: Sequence[Row]) -> dict[Row, int]:
        """The entry of each row in the arrays of a step."""
        if self._storage.batches:
            return {row: row.slot for row in rows}
        return {row: i for i, row in enumerate(rows)}

    def dispatch(self, ticket: Ticket) -> None:
        """Start one decode step of a ticket's rows: the forward, and the draw unless it must wait.

        Raises:
            EvalFailed: the backend threw; ``ticket.appended`` says whether lengths changed.
        """
        rows = list(ticket.rows)
        ticket.newest = self._newest(ticket.rows)
        ticket.logits = self._logits(rows, ticket.newest)
        ticket.appended = True
        if any(row.needs_host and row.in_flight for row in rows):
            _start(ticket, [ticket.logits])
        else:
            self.draw(ticket)

    def draw(self, ticket: Ticket) -> None:
        """Start the draw of a ticket whose forward is under way."""
        assert ticket.logits is not None
        assert ticket.newest is not None
        entries: list[Row | None] = [None] * ticket.logits.shape[0]
        for row, index in ticket.rows.items():
            if row.phase is Phase.DECODE:
                entries[index] = row
        drawn = self._drawn(entries, ticket, ticket.logits)
        ticket.draw = drawn
        ticket.readable = drawn.readable()
        ticket.logits = None
        _start(ticket, [ticket.readable, *drawn.arrays()])

    def release(self, ticket: Ticket) -> None:
        """Start a step that was only built.

        Raises:
            EvalFailed: the backend threw.
        """
        ticket.is_unstarted = False
        held, ticket.held = ticket.held, []
        if held:
            guard.dispatch(held)

    def draw_positions(
        self, drafts: Drafts, logits: mx.array
    ) -> tuple[Draw, dict[Row, HookFailed]]:
        """Draw the tokens after each of [newest token, *draft] of some rows, all at once.

        Args:
            drafts: the rows; an empty draft is a plain step.
            logits: float[N, V], as `of_drafts` gives them.

        Returns:
            The draw, in that order, and what mask hooks raised: what was drawn for those rows
            means nothing.
        """
        entries: list[DrawRow] = []
        newest: list[int] = []
        faults: dict[Row, HookFailed] = {}
        for row, draft in drafts.items():
            ids = [*row.ids, *draft]
            places = range(len(entries), len(entries) + len(draft) + 1)
            if row.hooks is not None:
                try:
                    for at, place in enumerate(places, len(row.ids)):
                        logits = masked(row.hooks, ids[:at], logits, place)
                except HookFailed as error:
                    faults[row] = error
            entries += (DrawRow(row.sampler, len(row.ids) + i, ids) for i in range(len(places)))
            newest += ids[len(row.ids) - 1 :]
        plan = DrawPlan([entry.sampler for entry in entries], self._programs)
        return draw(plan, entries, logits, mx.array(newest, mx.int32)), faults

    def _newest(self, indices: dict[Row, int]) -> mx.array:
        """int32[W]: what each row feeds, from the host or from the ticket before."""
        width = self._storage.rows if self._storage.batches else len(indices)
        host = [0] * width
        lazy: dict[Ticket, list[tuple[int, int]]] = {}
        for row, index in indices.items():
            if row.in_flight:
                source = row.in_flight[-1]
                lazy.setdefault(source, []).append((index, source.rows[row]))
            else:
                host[index] = row.ids[-1]
        newest: mx.array | None = None
        for source, pairs in lazy.items():
            tokens = self._tokens_of(source)
            straight = len(pairs) == len(indices) and tokens.shape[0] == width
            if straight and all(to == at for to, at in pairs):
                return tokens
            take, chosen = [0] * width, [False] * width
            for to, at in pairs:
                take[to], chosen[to] = at, True
            base = mx.array(host, mx.int32) if newest is None else newest
            newest = mx.where(mx.array(chosen), tokens[mx.array(take)], base)
        return mx.array(host, mx.int32) if newest is None else newest

    def _tokens_of(self, ticket: Ticket) -> mx.array:
        """What a step drew, or will have drawn; a step that failed fails the next one too."""
        if ticket.error is not None:
            raise ticket.error
        if ticket.draw is None:
            # The rows it waited for are gone, so nothing else would draw it.
            assert not ticket.waits, "no step goes behind one that waits"
            self.draw(ticket)
        assert ticket.draw is not None
        return ticket.draw.tokens

    def _logits(self, rows: Sequence[Row], newest: mx.array) -> mx.array:
        """float[W, V]."""
        if self._storage.batches:
            return self._pool_logits([row.slot for row in rows], newest)
        alone = []
        for i, row in enumerate(rows):
            with self._storage.all([row.slot]) as caches:
                alone.append(self._model(newest[i : i + 1, None], cache=caches)[:, -1])
        return alone[0] if len(alone) == 1 else mx.concatenate(alone, axis=0)

    def _pool_logits(self, slots: Sequence[int], newest: mx.array) -> mx.array:
        """float[W, V] of a pool: one forward, and one for each row that has no state yet."""
        begin = {slot for slot in slots if self._storage.begins_alone(slot)}
        shared = [slot for slot in slots if slot not in begin]
        alone: dict[int, mx.array] = {}
        for slot in begin:
            with self._storage.one(slot, 1) as caches:
                alone[slot] = self._model(newest[slot : slot + 1, None], cache=caches)[:, -1]
        if shared:
            with self._storage.all(shared) as caches:
                logits: mx.array = self._model(newest[:, None], cache=caches)[:, -1]
        else:
            logits = mx.repeat(mx.zeros_like(next(iter(alone.values()))), len(newest), axis=0)
        for slot, own in alone.items():
            logits = mx.slice_update(logits, own, mx.array([slot]), axes=[0])
        return logits

    def _drawn(self, entries: Sequence[Row | None], ticket: Ticket, logits: mx.array) -> Draw:
        assert ticket.newest is not None
        key = tuple(-1 if row is None else row.seq for row in entries)
        if self._plan is None or key != self._planned:
            samplers = [None if row is None else row.sampler for row in entries]
            self._plan = DrawPlan(samplers, self._programs)
            self._planned = key
        rows = [self._draw_row(row, ticket) for row in entries]
        for i, row in enumerate(entries):
            if row is None or row.hooks is None:
                continue
            try:
                logits = masked(row.hooks, rows[i].ids, logits, i)
            except HookFailed as error:
                ticket.faults[row] = error
        return draw(self._plan, rows, logits, ticket.newest)

    def _draw_row(self, row: Row | None, ticket: Ticket) -> DrawRow:
        if row is None:
            return DrawRow(None, 0, ())
        ahead = row.in_flight.index(ticket) if ticket in row.in_flight else len(row.in_flight)
        position = len(row.ids) + ahead
        row.sampler.advance(row.ids, position - 1)
        return DrawRow(row.sampler, position, row.ids)


def _shaped(logits: mx.array, *shape: int) -> mx.array:
    if logits.ndim != len(shape) + 1 or logits.shape[:-1] != shape:
        raise EvalFailed(f"the model gave {logits.shape} for {shape} tokens")
    return logits


def _start(ticket: Ticket, arrays: list[mx.array]) -> None:
    if ticket.is_unstarted:
        ticket.held = arrays
    else:
        guard.dispatch(arrays)


def masked(hooks: RowHooks, ids: Sequence[int], logits: mx.array, entry: int) -> mx.array:
    """``logits`` with what a row's hook adds to its entry.

    Raises:
        HookFailed: the hook raised, or forbids every token.
    """
    try:
        mask = hooks.mask(ids)
    except HOOK_ERRORS as error:
        raise HookFailed(f"{type(error).__name__}: {error}") from error
    if mask is None:
        return logits
    if float(mask.max()) == -math.inf:
        raise HookFailed("the mask allows no token")
    added: mx.array = logits.at[entry].add(mx.array(mask, logits.dtype))
    return added
