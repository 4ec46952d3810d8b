"""Does what ``mlxcel models`` asks: the answer on stdout, everything else on stderr."""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.errors import InvalidParams, ModelError, PullFailed
from engine.models.catalog import STARTER, LocalModel, ModelPlaces, local_models
from engine.models.hub_name import parse_hub_name
from engine.models.progress import Progress
from engine.models.remove import removal, remove
from engine.models.resolve import find_local, resolve
from engine.models.summary import summarize
from mlxcel_cli.config import load_settings
from mlxcel_cli.output import Output, printable, standard_output
from mlxcel_cli.progress_text import bytes_text, progress_text

EXAMPLE_MODEL = "mlx-community/Qwen3-0.6B-4bit"
_HEADINGS = ("NAME", "KIND", "SIZE", "CONTEXT", "WEIGHTS")


class ModelManager:
    """The models on this machine, as a person sees and changes them."""

    def __init__(self, places: ModelPlaces, output: Output, *, offline: bool) -> None:
        self._places = places
        self._output = output
        self._offline = offline

    @classmethod
    def open(cls, config: Path | None) -> "ModelManager":
        """The models that the environment and the options file point to."""
        settings = load_settings(os.environ, command="models", config=config)
        output = standard_output(os.environ)
        for warning in settings.warnings:
            output.note(f"mlxcel: {warning}")
        places = ModelPlaces(
            home=settings.cache_home, hub_cache=settings.hub_cache, aliases=settings.aliases
        )
        return cls(places, output, offline=settings.hub_offline)

    def list(self, *, as_json: bool) -> None:
        """Write one line for each model; broken ones say what is wrong."""
        found = local_models(self._places)
        if as_json:
            for model in found:
                self._output.json_line(_as_json(model))
            return
        if found:
            for line in _table(map(_row, found)):
                self._output.line(line)
            return
        self._output.note(
            "mlxcel: no models here yet. mlxcel generate fetches the starter by itself; "
            f"mlxcel models pull {EXAMPLE_MODEL} brings a larger one"
        )

    def show(self, name: str, *, as_json: bool) -> None:
        """Write what the model's files say."""
        facts = _facts(find_local(name, self._places, offline=self._offline))
        if as_json:
            self._output.json_line(facts)
            return
        labels = {key: key.removesuffix("_bytes").replace("_", " ") for key in facts}
        width = max(map(len, labels.values()))
        for key, value in facts.items():
            if value is not None:
                self._output.line(f"{labels[key]:<{width}}  {_readable(key, value)}")

    def pull(self, name: str) -> None:
        """Fetch a model and make it ready to load."""
        name = self._places.aliases.get(name, name)
        if name.lower() != STARTER:
            self._fetch(name)
        found = resolve(name, self._places, offline=self._offline, progress=self._report)
        self._output.clear_progress()
        for note in found.notes:
            self._output.note(f"mlxcel: {note}")
        self._output.line(str(found.folder))

    def remove(self, name: str, *, ask: bool) -> None:
        """Delete a model after asking.

        Raises:
            InvalidParams: it lies outside the caches, or there is no terminal to ask on.
        """
        model = find_local(name, self._places, offline=self._offline)
        doomed = removal(model, self._places)
        if ask and not self._agreed(f"remove {model.name} ({', '.join(map(str, doomed))})?"):
            self._output.note("mlxcel: nothing was removed")
            return
        freed = remove(doomed)
        self._output.note(f"mlxcel: removed {model.name}, {bytes_text(freed)} freed")

    def _fetch(self, name: str) -> None:
        hub_name = parse_hub_name(name)
        if hub_name is None:
            guess = parse_hub_name(f"mlx-community/{name}")
            hint = f"; did you mean mlx-community/{name}?" if guess else ""
            raise InvalidParams("NAME", f"{name!r} is no hub id (owner/name){hint}")
        if self._offline:
            raise PullFailed(f"HF_HUB_OFFLINE forbids fetching {name}: unset it and try again")
        # The hub's client costs 0.2 s.
        from engine.models.pull import pull

        pulled = pull(hub_name, self._places.hub_cache, progress=self._report)
        self._output.clear_progress()
        for note in pulled.notes:
            self._output.note(f"mlxcel: {note}")
        verb = "fetched" if pulled.fetched_bytes else "was here already:"
        self._output.note(f"mlxcel: {hub_name} {verb} ({bytes_text(pulled.size_bytes)})")

    def _report(self, progress: Progress) -> None:
        self._output.progress(progress_text(progress))

    def _agreed(self, question: str) -> bool:
        if sys.stdin is None or not sys.stdin.isatty():
            raise InvalidParams("--yes", "is needed where there is no terminal to ask on")
        self._output.note(f"{question} [y/N]")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _as_json(model: LocalModel) -> dict[str, object]:
    return {
        "name": model.name,
        "kind": model.kind.value,
        "path": str(model.path),
        "size_bytes": model.size_bytes,
        "family": model.family,
        "quantization": model.quantization,
        "context_tokens": model.context_tokens,
        "problem": model.problem,
    }


def _facts(model: LocalModel) -> Mapping[str, object]:
    facts = _as_json(model)
    if model.is_gguf_file or model.problem is not None:
        return facts
    try:
        summary = summarize(model.path)
    except ModelError as error:
        return facts | {"problem": str(error)}
    return facts | {
        "parameters": summary.parameters,
        "layers": summary.layers,
        "vocab_size": summary.vocab_size,
        "stored_dtypes": list(summary.stored_dtypes),
        "has_template": summary.has_template,
    }


def _readable(key: str, value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int() if key == "size_bytes":
            return bytes_text(value)
        case int():
            return f"{value:,}"
        case [*items]:
            return ", ".join(map(str, items))
        case _:
            return printable(str(value))


def _row(model: LocalModel) -> tuple[str, ...]:
    context = "" if model.context_tokens is None else str(model.context_tokens)
    weights = (model.problem and f"broken: {model.problem}") or model.quantization or ""
    return (model.name, model.kind.value, bytes_text(model.size_bytes), context, weights)


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [_HEADINGS, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
