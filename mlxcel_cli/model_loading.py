"""Finds and loads the model of a request and puts an Engine and a Session on it.

Imports MLX; only the engine thread imports this.
"""

from collections.abc import Callable

from engine.engine import Engine
from engine.models.load import LoadedModel, LoadOptions, WeightForm, load
from engine.models.progress import Progress
from engine.models.resolve import ModelPlaces, resolve
from engine.session import Session
from mlxcel_cli.answers import ModelRequest
from mlxcel_cli.config import Settings

LOAD_STEPS = 100
"""A load reports its part of 1; a Progress counts in whole steps."""


def load_model(
    request: ModelRequest, report: Callable[[Progress], None]
) -> tuple[LoadedModel, Session]:
    """The model, ready to answer.

    Raises:
        EngineError: there is no such model, it is broken, or it would not fit.
    """
    places = model_places(request.settings)
    found = resolve(request.name, places, offline=request.offline, allow_pull=True, progress=report)
    loaded = load(
        found.folder,
        LoadOptions(dtype=request.dtype, form=_form(request), name=found.name),
        progress=lambda part: report(Progress("loading", int(part * LOAD_STEPS), LOAD_STEPS)),
    )
    machine = request.settings.machine
    clear_every = machine.cache_clear_interval
    engine = (
        Engine(loaded, context_tokens=request.context_tokens)
        if clear_every is None
        else Engine(loaded, context_tokens=request.context_tokens, clear_every=clear_every)
    )
    return loaded, Session(engine, pipelined=not machine.force_sync)


def model_places(settings: Settings) -> ModelPlaces:
    """Where models of these settings are looked for."""
    return ModelPlaces(
        home=settings.cache_home, hub_cache=settings.hub_cache, aliases=settings.aliases
    )


def _form(request: ModelRequest) -> WeightForm:
    if request.quantized is None:
        return WeightForm.AUTO
    return WeightForm.QUANTIZED if request.quantized else WeightForm.DENSE
