"""Loads the model of a server and puts a BatchScheduler on it, all on the engine thread.

Whatever imports MLX is imported inside the functions: a server listens before it is loaded.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.params import SequenceParams
from engine.scheduler.request import ScheduledRequest
from mlxcel_cli.serve.served_model import ServedModel

if TYPE_CHECKING:
    from engine.loading import OpenedModel
    from engine.lookup.widths import WidthCosts
    from engine.lookup.widths_file import WidthCostsFile
    from engine.models.progress import Progress
    from engine.prefill import PrefillPacer
    from engine.scheduler.scheduler import BatchScheduler
    from engine.scheduler.settings import LookupSettings
    from mlxcel_cli.answers import ModelRequest
    from mlxcel_cli.serve.settings import ServeSettings

WARM_UP_TEXT = "Hello"
WARM_UP_TOKENS = 2


@dataclass(slots=True)
class HostedModel:
    """A loaded model with its scheduler."""

    model: ServedModel
    scheduler: BatchScheduler
    ready: OpenedModel | None
    kept: WidthCostsFile | None = None
    """Where measured costs of verify rounds are to be kept; None: nothing was left to measure."""

    def close(self) -> None:
        """Free the model and the memory MLX keeps for it."""
        import mlx.core as mx

        ready, self.ready = self.ready, None
        keep_costs(self.kept, self.scheduler.stats().width_costs)
        self.scheduler.close()
        del self.scheduler
        if ready is not None:
            ready.close()
            del ready
        gc.collect()
        mx.clear_cache()


def keep_costs(kept: WidthCostsFile | None, costs: WidthCosts | None) -> None:
    """Keep what was measured, for the next start."""
    if kept is not None and costs is not None:
        kept.save(costs)


class ModelHost:
    """Loads the model as often as it is asked to.

    Args:
        request: which model, and how.
        settings: the server's.
    """

    def __init__(self, request: ModelRequest, settings: ServeSettings) -> None:
        self._request = request
        self._settings = settings

    def load(self, report: Callable[[Progress], None]) -> HostedModel:
        """The model, ready to serve.

        Raises:
            EngineError: there is no such model, it is broken, or it would not fit.
        """
        started_s = time.perf_counter()
        from engine.prefill import PrefillPacer
        from engine.prompt_cache.cache import WHOLE_KINDS
        from mlxcel_cli.model_loading import load_model

        ready = load_model(self._request, report)
        kept = ready.use_kept_widths(self._settings.speculation)
        loaded = ready.loaded
        budget = self._kv_budget(ready)
        pacer = PrefillPacer(fixed_tokens=self._chunk_tokens)
        if self._settings.warmup:
            self._warm_up(ready, pacer)
            keep_costs(kept, ready.width_costs)
        model = ServedModel(
            facts=loaded.facts,
            tokenizer=loaded.tokenizer,
            template=loaded.template,
            generation=loaded.generation,
            context_tokens=ready.engine.context_tokens,
            kv_budget_tokens=budget,
            load_s=time.perf_counter() - started_s,
            keeps_whole_kv=ready.engine.choice.kind in WHOLE_KINDS,
            kv_kind=ready.engine.choice.kind,
            notes=ready.notes,
            warnings=ready.warnings,
        )
        return HostedModel(model, self._scheduler(ready, pacer, budget), ready, kept)

    @property
    def _chunk_tokens(self) -> int | None:
        chosen = self._settings.prefill_chunk_size
        return self._request.settings.machine.prefill_chunk if chosen is None else chosen

    def _scheduler(
        self, ready: OpenedModel, pacer: PrefillPacer, budget: int | None
    ) -> BatchScheduler:
        from engine.scheduler.scheduler import BatchScheduler

        pipelined = not self._request.settings.machine.force_sync
        lookup = self._lookup(ready)
        settings = self._settings.scheduler(budget, pipelined=pipelined, lookup=lookup)
        return BatchScheduler(ready.engine, settings, pacer=pacer)

    def _lookup(self, ready: OpenedModel) -> LookupSettings | None:
        """How its answers are drafted, at the prices that are known by now."""
        from engine.scheduler.settings import LookupSettings

        speculation = self._settings.speculation
        if speculation is None:
            return None
        return LookupSettings(
            speculation,
            max_batch=self._settings.prompt_lookup_max_batch,
            builds_kernels=ready.device != "cpu",
            width_costs=ready.width_costs,
        )

    def _kv_budget(self, ready: OpenedModel) -> int | None:
        """Tokens of KV that all rows together may take."""
        asked = self._settings.kv_budget
        if asked is not None:
            return asked
        is_cached = self._settings.prompt_cache
        return ready.kv_budget_tokens(self._settings.prompt_cache_bytes if is_cached else 0)

    def _warm_up(self, ready: OpenedModel, pacer: PrefillPacer) -> None:
        """Answer a short prompt, so that kernels and buffers are there before the first client."""
        tokenizer = ready.loaded.tokenizer
        ids = tokenizer.encode(WARM_UP_TEXT, add_bos=True)
        scheduler = self._scheduler(ready, pacer, None)
        scheduler.submit(
            ScheduledRequest("warm-up", SequenceParams(ids, max_tokens=WARM_UP_TOKENS))
        )
        while not scheduler.idle:
            scheduler.tick()
        # Each load measures once, and its session keeps what was measured.
        ready.width_costs = scheduler.stats().width_costs
        scheduler.close()
