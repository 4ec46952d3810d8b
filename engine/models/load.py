"""Loads a model folder: the model, its tokenizer and template, and the facts about them.

Runs on the engine thread. When `load` returns, every weight is evaluated. Nothing is written to
stdout and no code that comes with a model is run.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.errors import ModelFileError, UnsupportedModel
from engine.models import cpu_forms
from engine.models.checkpoint import (
    CONFIG,
    INDEX,
    WHOLE,
    has_stale_index,
    model_name,
    read_config,
    read_json,
)
from engine.models.facts import (
    Geometry,
    context_or_fallback,
    eos_ids,
    generation_defaults,
    quantization_label,
    read_geometry,
)
from engine.models.facts import ModelFacts as ModelFacts
from engine.models.form import FormChoice, Stored, choose_form, dtype_name, parse_dtype
from engine.models.form import WeightForm as WeightForm
from engine.models.mlxlm import model_classes
from engine.models.output_head import drop_unused, head_warnings, with_shipped_head
from engine.models.rope_config import unfold_rope
from engine.models.turn_end import turn_end
from engine.models.weights import (
    Packing,
    bring_in,
    cast,
    find_packings,
    flat_parameters,
    keep_packed,
    main_dtype,
    read_weights,
    start,
    unpack,
    verify,
)
from engine.runtime.device import total_memory_bytes
from engine.runtime.memory import host_memory_available
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer

# What mlx-lm's classes raise for a config.json that does not describe what it says it does.
_MISFITS = (
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)

# quantization_config formats whose tensors mlx-lm's families bring into MLX's own layout.
_KNOWN_QUANT_METHODS = frozenset({"mxfp4", "mxfp8", "fp8", "compressed-tensors"})


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the caller decides about the weights; the defaults pick what runs fastest."""

    dtype: str | None = None
    form: WeightForm = WeightForm.AUTO
    name: str | None = None
    """What the model is called in facts and messages; None takes it from the folder."""
    available_bytes: int | None = None
    """Memory the weights may fill; None asks the system."""
    preflight: Callable[[ModelFacts], None] | None = None
    """Called with the facts, but for the template, before any weight is read; what it raises ends
    the load."""
    fast_forms: bool = True
    """Whether mlx-lm's functions may be replaced by forms that a CPU computes faster."""


@dataclass(slots=True)
class LoadedModel:
    """A model in memory with everything that came in its folder."""

    model: Any
    """The mlx-lm module."""
    facts: ModelFacts
    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_ids: frozenset[int]
    """Of config.json, generation_config.json and the tokenizer together."""
    generation: Mapping[str, float]
    """Sampling parameters that its authors recommend, by name."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A model whose weights are chosen and checked, and not read yet."""

    model: Any
    args: Any
    weights: dict[str, mx.array]
    choice: FormChoice
    packings: dict[str, Packing]
    """Of the modules that stay packed."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def load(
    folder: Path,
    options: LoadOptions = LoadOptions(),
    *,
    progress: Callable[[float], None] | None = None,
) -> LoadedModel:
    """Load the model in `folder`; `progress` gets the part of the weights that is in memory.

    Raises:
        ModelFileError: A file is missing, truncated, corrupt or does not fit the model.
        UnsupportedModel: mlx-lm has no such family, or not in this kind of quantization.
        InvalidParams: The options ask for what this checkpoint cannot give.
    """
    config = read_config(folder)
    planned = _plan(folder, config, options)
    with _misfits(folder):
        geometry = read_geometry(planned.model)
    facts = _facts(folder, config, planned, geometry, options.name)
    if options.preflight is not None:
        options.preflight(facts)
    start(planned.weights)
    if options.fast_forms:
        cpu_forms.use_cpu_forms()
    # A large vocabulary takes 0.1 s to read: the first weights come in meanwhile.
    tokenizer = Tokenizer.from_folder(folder)
    template = ChatTemplate.from_folder(folder, tokenizer)
    generation = read_json(folder / "generation_config.json") or {}
    bring_in(planned.weights, folder, progress)
    ends = eos_ids(config, generation, tokenizer.eos_ids, facts.vocab_size)
    if template is not None and (end := turn_end(template, tokenizer, ends)) is not None:
        ends |= eos_ids({"eos_token_id": end}, {}, (), facts.vocab_size)
    return LoadedModel(
        model=planned.model,
        facts=replace(
            facts,
            template_text=None if template is None else template.source,
            notes=(*facts.notes, *_vocabulary_notes(tokenizer, facts)),
        ),
        tokenizer=tokenizer,
        template=template,
        eos_ids=ends,
        generation=generation_defaults(generation),
    )


_DECLARED = {"float16": mx.float16, "bfloat16": mx.bfloat16}
"""``torch_dtype`` of a config, where it is a 16-bit one."""


def _plan(folder: Path, config: dict[str, Any], options: LoadOptions) -> _Planned:
    _refuse_unknown_quantization(config)
    model_class, model_args = model_classes(config)
    config = unfold_rope(config, _args_of)
    weights = read_weights(folder)
    warnings = head_warnings(config, weights)
    with _misfits(folder):
        args = model_args.from_dict(with_shipped_head(config, weights, _args_of))
        model = model_class(args)
        if hasattr(model, "sanitize"):
            weights = model.sanitize(weights)
    notes = drop_unused(model, weights)
    packings = find_packings(model, weights, folder)
    declared = _DECLARED.get(str(config.get("torch_dtype") or config.get("dtype")))
    choice = _choose(model, weights, packings, options, declared)
    if choice.dense:
        unpack(weights, packings, choice.dtype)
        packings = {}
    else:
        keep_packed(model, packings)
    cast(weights, choice.dtype, getattr(model, "cast_predicate", None))
    verify(model, weights, folder)
    model.eval()
    model.load_weights(list(weights.items()), strict=False)
    if has_stale_index(folder):
        notes += (f"{INDEX} names files that are not here; {WHOLE} is used",)
    return _Planned(model, args, weights, choice, packings, notes, warnings)


def _vocabulary_notes(tokenizer: Tokenizer, facts: ModelFacts) -> Iterator[str]:
    """Tokens without a row in the embedding: none is ever drawn, and a prompt may not hold one."""
    if tokenizer.vocab_size > facts.vocab_size:
        yield (
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {facts.vocab_size}: "
            "those above cannot be used"
        )


def _args_of(config: Mapping[str, Any]) -> Any:
    """The ``ModelArgs`` class of a config; None where mlx-lm has no family of that type."""
    try:
        return model_classes(config)[1]
    except UnsupportedModel:
        return None


def _choose(
    model: Any,
    weights: dict[str, mx.array],
    packings: dict[str, Packing],
    options: LoadOptions,
    declared: mx.Dtype | None,
) -> FormChoice:
    on_cpu = mx.default_device() == mx.cpu
    available = options.available_bytes
    if available is None and on_cpu:
        available = host_memory_available() or total_memory_bytes() // 2
    stored = Stored(
        packed=bool(packings),
        weights_count=sum(array.size for array in flat_parameters(model).values()),
        dtype=main_dtype(weights.values()),
        on_cpu=on_cpu,
        available_bytes=available or 0,
        declared=declared,
    )
    return choose_form(stored, options.form, parse_dtype(options.dtype))


def _facts(
    folder: Path,
    config: dict[str, Any],
    planned: _Planned,
    geometry: Geometry,
    name: str | None,
) -> ModelFacts:
    arrays = flat_parameters(planned.model).values()
    return ModelFacts(
        name=name or model_name(folder),
        path=folder,
        family=str(config["model_type"]),
        vocab_size=geometry.vocab_size,
        context_tokens=context_or_fallback(config, planned.args),
        layers=geometry.layers,
        kv_bytes_per_token=geometry.kv_bytes_per_token,
        dtype=dtype_name(main_dtype(arrays)),
        quantization=quantization_label(str(packing) for packing in planned.packings.values()),
        weight_bytes=sum(array.nbytes for array in arrays),
        notes=(planned.choice.note, *planned.notes),
        warnings=planned.warnings,
        template_text=None,
    )


def _refuse_unknown_quantization(config: dict[str, Any]) -> None:
    """Refuse packings that neither MLX nor mlx-lm's families read.

    Raises:
        UnsupportedModel: With what to do instead.
    """
    if config.get("quantize_activations"):
        raise UnsupportedModel("models with quantized activations cannot run here")
    if config.get("quantization") is not None:  # MLX's own
        return
    foreign = config.get("quantization_config")
    if not foreign and isinstance(text := config.get("text_config"), Mapping):
        foreign = text.get("quantization_config")
    method = foreign.get("quant_method") if isinstance(foreign, Mapping) else None
    if method is not None and method not in _KNOWN_QUANT_METHODS:
        raise UnsupportedModel(
            f"weights quantized with {method!r} cannot be read here; "
            "look for an MLX conversion of the model (mlx-community/... on Hugging Face)"
        )


@contextmanager
def _misfits(folder: Path) -> Iterator[None]:
    """Turn what mlx-lm's classes raise for a wrong config.json into an error that says so."""
    try:
        yield
    except _MISFITS as error:
        raise ModelFileError(
            folder / CONFIG, f"does not describe a model: {type(error).__name__}: {error}"
        ) from error
