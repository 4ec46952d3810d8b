"""Opens the model that a command line and settings ask for.

Imports MLX; only the engine thread imports this.
"""

from collections.abc import Callable

from engine.loading import OpenedModel, OpenOptions, open_model
from engine.models.progress import Progress
from engine.models.resolve import ModelPlaces
from mlxcel_cli.answers import ModelRequest


def load_model(
    request: ModelRequest,
    report: Callable[[Progress], None],
    *,
    when_found: Callable[[], None] = lambda: None,
) -> OpenedModel:
    """The model of a request, ready to answer; see `engine.loading.open_model`.

    Raises:
        EngineError: there is no such model, it is broken, or it would not fit.
    """
    return open_model(request.name, open_options(request), report, when_found=when_found)


def open_options(request: ModelRequest) -> OpenOptions:
    """How the engine is to open it: the request's options and the machine's settings."""
    settings, machine = request.settings, request.settings.machine
    return OpenOptions(
        context_tokens=request.context_tokens,
        quantized=request.quantized,
        dtype=request.dtype,
        offline=request.offline,
        force=request.force,
        places=ModelPlaces(
            home=settings.cache_home, hub_cache=settings.hub_cache, aliases=settings.aliases
        ),
        blas=machine.blas,
        deterministic=machine.deterministic,
        cache_clear_interval=machine.cache_clear_interval,
        prefill_chunk=machine.prefill_chunk,
        is_pipelined=not machine.force_sync,
    )
