"""Finds and opens a model: its files, weights, engine and session, for every front end.

Imports MLX; what is opened belongs to the thread that opened it.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx

from engine.engine import Engine
from engine.lookup.widths import WidthCosts
from engine.lookup.widths_file import Measured, WidthCostsFile
from engine.models.load import LoadedModel, LoadOptions, WeightForm, load
from engine.models.progress import Progress, ProgressReport, no_report
from engine.models.resolve import ModelPlaces, resolve
from engine.params import LookupPolicy, SpeculationParams
from engine.prefill import PrefillPacer
from engine.runtime.blas import Route, prepare_blas
from engine.runtime.device import DeviceFacts, device_facts, prepare_cpu
from engine.runtime.folders import cache_home, hub_cache, hub_is_offline
from engine.runtime.memory import (
    MemoryNeed,
    clear_interval,
    memory_available,
    preflight,
    wired_limit,
)
from engine.session import Session

LOAD_STEPS = 100
"""A load reports its part of 1; a Progress counts in whole steps."""

CHECKED_CONTEXT_TOKENS = 4096
"""KV is checked for at most this many tokens when no context was asked for: it is allocated as
an answer grows, and few answers fill the context a model was made for."""

KV_SHARE = 0.8
"""Part of the free memory that KV may take: forwards need some, and so do other programs."""


def default_places() -> ModelPlaces:
    """Where models are looked for when nobody says where: the folders of the environment."""
    return ModelPlaces(home=cache_home(), hub_cache=hub_cache())


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """How a model is found and opened; the defaults suit most machines."""

    context_tokens: int | None = None
    """Most tokens of prompt and answer together; None: what the model was made for."""
    quantized: bool | None = None
    """None: the form of the weights that runs fastest here and fits."""
    dtype: str | None = None
    """Of the activations: ``float32``, ``float16`` or ``bfloat16``; None: what suits the device."""
    offline: bool = field(default_factory=hub_is_offline)
    """Whether no model is downloaded; by default HF_HUB_OFFLINE decides."""
    force: bool = False
    """Whether it is loaded though it seems not to fit the memory."""
    places: ModelPlaces = field(default_factory=default_places)
    """Where models are looked for; by default MLXCEL_HOME and HF_HOME, else the usual folders."""
    blas: str | None = None
    """``off``, or the path of a BLAS library, for MLX's CPU backend on Linux."""
    deterministic: bool = False
    """Choose kernels whose results do not depend on the batch's width, where there are any."""
    cache_clear_interval: int | None = None
    """Tokens between two clearings of MLX's buffer cache; 0 is never."""
    prefill_chunk: int | None = None
    """Most prompt tokens of one forward; 0: the whole prompt; None: what is fast here."""
    is_pipelined: bool = True
    """False reads each token before the next forward is dispatched (for debugging)."""


@dataclass(slots=True)
class OpenedModel:
    """A model with everything that runs it, until it is closed."""

    loaded: LoadedModel
    engine: Engine
    session: Session
    options: OpenOptions = field(default_factory=OpenOptions)
    device: str = ""
    """The kind of device it runs on: ``metal``, ``cuda`` or ``cpu``."""
    notes: tuple[str, ...] = ()
    """What was chosen and why."""
    warnings: tuple[str, ...] = ()
    """What differs from what was asked for, or makes it slower than it could be."""
    blas: str = ""
    """The BLAS and its threads; empty on a GPU, and for the one that MLX brought."""
    width_costs: WidthCosts | None = None
    """What verify rounds cost here, once that is known."""
    resources: ExitStack = field(default_factory=ExitStack)
    """What has to be given back: wired memory."""

    def close(self) -> None:
        """Give wired memory back; idempotent."""
        self.resources.close()

    @property
    def widths_file(self) -> WidthCostsFile:
        """Where it is kept what verify rounds cost with this model on this machine."""
        facts = self.loaded.facts
        form = f"{facts.dtype}, {facts.quantization or 'dense'}, {facts.weight_bytes} bytes"
        model = f"{facts.path.name}: {form}"
        return WidthCostsFile(
            self.options.places.home, Measured(model=model, device=self.device, blas=self.blas)
        )

    def use_kept_widths(self, speculation: SpeculationParams | None) -> WidthCostsFile | None:
        """Take the costs of such drafts from their file; the file, if they are to be measured.

        On a GPU the measurement also builds the kernels, so each process runs it.
        """
        if speculation is None or self.device != "cpu":
            return None
        file = self.widths_file
        if self.width_costs is None:
            self.width_costs = file.load(speculation.max_draft)
        known = self.width_costs
        return file if known is None or known.max_draft < speculation.max_draft else None

    def kv_budget_tokens(self, cache_bytes: int = 0) -> int | None:
        """Tokens of KV that all rows together may take of the free memory; None: no bound.

        Args:
            cache_bytes: what a prompt cache may hold besides; at most half of the memory counts.
        """
        facts, device = self.loaded.facts, device_facts()
        free = memory_available(device)
        if self.options.force or not facts.kv_bytes_per_token or not free:
            return None
        if device.kind != "cpu":
            # A CPU reports what the weights leave; a GPU reports all it has.
            free -= facts.weight_bytes
        free -= min(cache_bytes, free // 2)
        return max(1, int(free * KV_SHARE) // facts.kv_bytes_per_token)


def open_model(
    name: str | None,
    options: OpenOptions,
    report: ProgressReport = no_report,
    *,
    when_found: Callable[[], None] = lambda: None,
) -> OpenedModel:
    """The model, ready to answer, on the fastest BLAS that works here.

    Args:
        name: what `engine.models.resolve` takes: a path, an alias, a hub id; None: the starter.
        options: how it is found and opened.
        report: takes how far it is.
        when_found: called once its files are there, before anything of it is loaded: the time to
            free the model before it.

    Raises:
        EngineError: there is no such model, it is broken, or it would not fit.
    """
    blas_notes, blas_warnings = _choose_blas(options)
    device = device_facts()
    prepare_cpu()
    found = resolve(name, options.places, offline=options.offline, allow_pull=True, progress=report)
    when_found()
    if not options.force:
        _check_files(found.folder, device)
    loaded = load(
        found.folder,
        LoadOptions(
            dtype=options.dtype,
            form=_form(options),
            name=found.name,
            fast_forms=not options.deterministic,
        ),
        progress=lambda part: report(Progress("loading", int(part * LOAD_STEPS), LOAD_STEPS)),
    )
    need = _need(loaded, options)
    if not options.force:
        _check_context(need, device)
    resources = ExitStack()
    resources.enter_context(wired_limit(device, need.total_bytes, mx))
    engine, session = _start(loaded, device, options)
    storage = f"KV storage: {engine.choice.kind}, {engine.choice.why}"
    cut = _cut_context(options.context_tokens, loaded)
    return OpenedModel(
        loaded,
        engine,
        session,
        options,
        device=device.kind,
        notes=(
            *found.notes,
            *loaded.facts.notes,
            storage,
            *_device_notes(device, options),
            *blas_notes,
        ),
        warnings=(*loaded.facts.warnings, *cut, *blas_warnings),
        blas=blas_notes[0] if blas_notes else "",
        resources=resources,
    )


def _choose_blas(options: OpenOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Notes on the BLAS that was chosen, and a warning if it is the slow one."""
    # The BLAS that MLX brought sums every row alike, however many rows there are.
    chosen = prepare_blas(options.places.home, "off" if options.deterministic else options.blas)
    if chosen.route is Route.STOCK:
        why = "; ".join(chosen.notes) or "none was found"
        return (), (f"no fast BLAS is used, answers are slow ({why}); see mlxcel doctor",)
    library = f", {chosen.library}" if chosen.library is not None else ""
    threads = f", {chosen.threads} threads" if chosen.threads is not None else ""
    return (f"BLAS: {chosen.route.value}{library}{threads}", *chosen.notes), ()


def _start(
    loaded: LoadedModel, device: DeviceFacts, options: OpenOptions
) -> tuple[Engine, Session]:
    engine = Engine(
        loaded,
        context_tokens=options.context_tokens,
        clear_every=clear_interval(device.kind, options.cache_clear_interval),
        compiled=device.kind != "cpu",
        unmeasured_policy=LookupPolicy.GATED if device.kind == "cuda" else LookupPolicy.GRADED,
    )
    session = Session(
        engine,
        pacer=PrefillPacer(fixed_tokens=options.prefill_chunk),
        pipelined=options.is_pipelined,
        builds_kernels=device.kind != "cpu",
    )
    return engine, session


def _need(loaded: LoadedModel, options: OpenOptions) -> MemoryNeed:
    facts = loaded.facts
    asked = options.context_tokens
    context = CHECKED_CONTEXT_TOKENS if asked is None else asked
    return MemoryNeed(
        weight_bytes=facts.weight_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        context_tokens=min(context, facts.context_tokens),
    )


def _cut_context(asked: int | None, loaded: LoadedModel) -> tuple[str, ...]:
    own = loaded.facts.context_tokens
    if asked is None or asked <= own:
        return ()
    return (f"a context of {asked} tokens is cut to {own}, for which {loaded.facts.name} was made",)


def _check_files(folder: Path, device: DeviceFacts) -> None:
    """Refuse a model whose files alone are too much, before a byte of them is read."""
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    preflight(MemoryNeed(stored, 0, 0), device)


def _check_context(need: MemoryNeed, device: DeviceFacts) -> None:
    """Refuse a context whose KV would not fit with the weights, which are in memory now."""
    available = memory_available(device)
    # What a CPU has left does not hold the weights any more; a GPU reports all it has.
    if device.kind == "cpu" and available:
        available += need.weight_bytes
    preflight(need, device, available_bytes=available)


def _device_notes(device: DeviceFacts, options: OpenOptions) -> tuple[str, ...]:
    notes = [f"device: {device.kind}, {device.name}"]
    if options.deterministic and device.kind == "cpu":
        notes.append(
            "MLXCEL_DETERMINISTIC: MLX's own products and functions, slow and independent of the "
            "batch's width, take the fast ones' place"
        )
    elif options.deterministic:
        notes.append(
            "MLXCEL_DETERMINISTIC: MLX has no width-independent kernels on this device; one "
            "answer at a time is always computed alike"
        )
    return tuple(notes)


def _form(options: OpenOptions) -> WeightForm:
    if options.quantized is None:
        return WeightForm.AUTO
    return WeightForm.QUANTIZED if options.quantized else WeightForm.DENSE
