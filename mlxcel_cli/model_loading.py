"""Finds and loads the model of a request and puts an Engine and a Session on it.

Imports MLX; only the engine thread imports this.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from engine.engine import Engine
from engine.lookup.widths import WidthCosts
from engine.models.load import LoadedModel, LoadOptions, WeightForm, load
from engine.models.progress import Progress
from engine.models.resolve import ModelPlaces, resolve
from engine.params import LookupPolicy, SpeculationParams
from engine.prefill import PrefillPacer
from engine.runtime.blas import Route, prepare_blas
from engine.runtime.device import DeviceFacts, device_facts, prepare_cpu
from engine.runtime.memory import (
    MemoryNeed,
    clear_interval,
    memory_available,
    preflight,
    wired_limit,
)
from engine.session import Session
from mlxcel_cli.answers import ModelRequest
from mlxcel_cli.config import Settings
from mlxcel_cli.width_costs import Measured, WidthCostsFile

LOAD_STEPS = 100
"""A load reports its part of 1; a Progress counts in whole steps."""

CHECKED_CONTEXT_TOKENS = 4096
"""KV is checked for at most this many tokens when no context was asked for: it is allocated as
an answer grows, and few answers fill the context a model was made for."""


@dataclass(slots=True)
class ReadyModel:
    """A model with everything that runs it, until it is closed."""

    loaded: LoadedModel
    engine: Engine
    session: Session
    notes: tuple[str, ...]
    held: ExitStack
    """What has to be given back: wired memory."""
    device: str
    """The kind of device it runs on: ``metal``, ``cuda`` or ``cpu``."""
    warnings: tuple[str, ...] = ()
    """What differs from what was asked for, or makes it slower than it could be."""
    width_costs: WidthCosts | None = None
    """What verify rounds cost here, once that is known."""
    cache_home: Path = Path()
    blas: str = ""
    """The BLAS and its threads; empty on a GPU, and for the one that MLX brought."""

    @property
    def widths_file(self) -> WidthCostsFile:
        """Where it is kept what verify rounds cost with this model on this machine."""
        facts = self.loaded.facts
        form = f"{facts.dtype}, {facts.quantization or 'dense'}, {facts.weight_bytes} bytes"
        model = f"{facts.path.name}: {form}"
        return WidthCostsFile(
            self.cache_home, Measured(model=model, device=self.device, blas=self.blas)
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


def load_model(
    request: ModelRequest,
    report: Callable[[Progress], None],
    *,
    when_found: Callable[[], None] = lambda: None,
) -> ReadyModel:
    """The model, ready to answer, on the fastest BLAS that works here.

    Args:
        request: which, and how.
        report: takes how far it is.
        when_found: called once its files are there, before anything of it is loaded: the time to
            free the model before it.

    Raises:
        EngineError: there is no such model, it is broken, or it would not fit.
    """
    blas_notes, blas_warnings = _choose_blas(request)
    device = device_facts()
    prepare_cpu()
    found = resolve(
        request.name,
        model_places(request.settings),
        offline=request.offline,
        allow_pull=True,
        progress=report,
    )
    when_found()
    if not request.force:
        _check_files(found.folder, device)
    loaded = load(
        found.folder,
        LoadOptions(
            dtype=request.dtype,
            form=_form(request),
            name=found.name,
            fast_forms=not request.settings.machine.deterministic,
        ),
        progress=lambda part: report(Progress("loading", int(part * LOAD_STEPS), LOAD_STEPS)),
    )
    need = _need(loaded, request)
    if not request.force:
        _check_context(need, device)
    held = ExitStack()
    held.enter_context(wired_limit(device, need.total_bytes, mx))
    engine, session = _start(loaded, device, request)
    storage = f"KV storage: {engine.choice.kind}, {engine.choice.why}"
    notes = (
        *found.notes,
        *loaded.facts.notes,
        storage,
        *_device_notes(device, request.settings),
        *blas_notes,
    )
    cut = _cut_context(request.context_tokens, loaded)
    return ReadyModel(
        loaded,
        engine,
        session,
        notes,
        held,
        device.kind,
        warnings=(*loaded.facts.warnings, *cut, *blas_warnings),
        cache_home=request.settings.cache_home,
        blas=blas_notes[0] if blas_notes else "",
    )


def model_places(settings: Settings) -> ModelPlaces:
    """Where models of these settings are looked for."""
    return ModelPlaces(
        home=settings.cache_home, hub_cache=settings.hub_cache, aliases=settings.aliases
    )


def _choose_blas(request: ModelRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Notes on the BLAS that was chosen, and a warning if it is the slow one."""
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


def _start(
    loaded: LoadedModel, device: DeviceFacts, request: ModelRequest
) -> tuple[Engine, Session]:
    machine = request.settings.machine
    engine = Engine(
        loaded,
        context_tokens=request.context_tokens,
        clear_every=clear_interval(device.kind, machine.cache_clear_interval),
        compiled=device.kind != "cpu",
        unmeasured_policy=LookupPolicy.GATED if device.kind == "cuda" else LookupPolicy.GRADED,
    )
    session = Session(
        engine,
        pacer=PrefillPacer(fixed_tokens=machine.prefill_chunk),
        pipelined=not machine.force_sync,
        builds_kernels=device.kind != "cpu",
    )
    return engine, session


def _need(loaded: LoadedModel, request: ModelRequest) -> MemoryNeed:
    facts = loaded.facts
    asked = request.context_tokens
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


def _device_notes(device: DeviceFacts, settings: Settings) -> tuple[str, ...]:
    notes = [f"device: {device.kind}, {device.name}"]
    if settings.machine.deterministic:
        notes.append(deterministic_note(device.kind))
    return tuple(notes)


def deterministic_note(device_kind: str) -> str:
    """What ``MLXCEL_DETERMINISTIC`` does on this kind of device."""
    if device_kind == "cpu":
        return (
            "MLXCEL_DETERMINISTIC: MLX's own products and functions, slow and independent of the "
            "batch's width, take the fast ones' place"
        )
    return (
        "MLXCEL_DETERMINISTIC: MLX has no width-independent kernels on this device; one "
        "answer at a time is always computed alike"
    )


def _form(request: ModelRequest) -> WeightForm:
    if request.quantized is None:
        return WeightForm.AUTO
    return WeightForm.QUANTIZED if request.quantized else WeightForm.DENSE
