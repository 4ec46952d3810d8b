"""Reads weights, checks them against the model, unpacks them where chosen, and brings them in.

Dense weights are unpacked and evaluated one tensor at a time, the largest first, so that the peak
stays within a few percent of the final size. The model's modules stay the dense ones then, so
tied embeddings stay tied.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from engine.errors import ModelFileError
from engine.models.checkpoint import read_header, weight_files
from engine.models.form import dtype_name

# The modes whose scales are bytes allow one (bits, group size) each (mlx 0.32).
_BYTE_SCALE_MODES = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
_BITS = (2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Packing:
    """How one module's weight is packed."""

    bits: int
    group_size: int
    mode: str

    def __str__(self) -> str:
        """As a person reads it: ``"4-bit group 32"``."""
        mode = "" if self.mode == "affine" else f" {self.mode}"
        return f"{self.bits}-bit{mode} group {self.group_size}"


def read_weights(folder: Path) -> dict[str, mx.array]:
    """Return every tensor of the folder, lazily: nothing but headers is read.

    Raises:
        ModelFileError: A shard is missing, truncated or corrupt.
    """
    weights: dict[str, mx.array] = {}
    for file in weight_files(folder):
        header = read_header(file)
        try:
            loaded = mx.load(str(file), format="safetensors")
        except (RuntimeError, ValueError) as error:
            raise ModelFileError(file, str(error)) from error
        assert isinstance(loaded, dict)
        for name in header:
            if name in weights:
                raise ModelFileError(file, f"tensor {name!r} is also in another shard")
        weights.update(loaded)
    return weights


def find_packings(
    model: nn.Module, weights: Mapping[str, mx.array], folder: Path
) -> dict[str, Packing]:
    """Return how each packed module's weight is packed, by module path.

    Read from the shapes themselves: what config.json says of quantization is a default that single
    modules may differ from, and older files do not say it per module.

    Raises:
        ModelFileError: A weight and its scales do not fit the module or each other.
    """
    return {
        path: _packing(path, module, weights, folder)
        for path, module in model.named_modules()
        if hasattr(module, "to_quantized") and f"{path}.scales" in weights
    }


def unpack(
    weights: dict[str, mx.array], packings: Mapping[str, Packing], dtype: mx.Dtype | None
) -> None:
    """Replace, in place, every packed weight by its dense form, lazily.

    The packed arrays are then held by the lazy result alone and go when it is evaluated.
    """
    for path, packing in packings.items():
        scales = weights.pop(f"{path}.scales")
        biases = weights.pop(f"{path}.biases", None)
        if packing.mode == "affine" and dtype is not None:
            scales = scales.astype(dtype)
            biases = None if biases is None else biases.astype(dtype)
        weights[f"{path}.weight"] = mx.dequantize(
            weights[f"{path}.weight"],
            scales,
            biases,
            group_size=packing.group_size,
            bits=packing.bits,
            mode=packing.mode,
            global_scale=weights.pop(f"{path}.global_scale", None),
            dtype=dtype,
        )


def keep_packed(model: nn.Module, packings: Mapping[str, Packing]) -> None:
    """Give the model quantized modules where its weights are packed."""

    def parameters(path: str, _: nn.Module) -> bool | dict[str, Any]:
        packing = packings.get(path)
        if packing is None:
            return False
        return {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}

    nn.quantize(model, class_predicate=parameters)


def cast(
    weights: dict[str, mx.array],
    dtype: mx.Dtype | None,
    may_narrow: Callable[[str], bool] | None = None,
) -> None:
    """Cast floating tensors, in place and lazily, to `dtype`; None casts nothing.

    `may_narrow` names tensors that a family wants no narrower than they are.
    """
    if dtype is None:
        return
    for name, array in weights.items():
        if not mx.issubdtype(array.dtype, mx.floating):
            continue
        if may_narrow is None or dtype.size >= array.dtype.size or may_narrow(name):
            weights[name] = array.astype(dtype)


def verify(model: nn.Module, weights: Mapping[str, mx.array], folder: Path) -> None:
    """Check that the weights are exactly the model's parameters.

    Raises:
        ModelFileError: A tensor is missing, unknown, or of the wrong shape or kind.
    """
    expected = flat_parameters(model)
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise ModelFileError(folder, f"{_named(missing)} missing")
    extra = sorted(weights.keys() - expected.keys())
    if extra:
        raise ModelFileError(folder, f"{_named(extra)} not part of this kind of model")
    for name, parameter in expected.items():
        found = weights[name]
        if found.shape != parameter.shape:
            raise ModelFileError(
                folder, f"tensor {name!r} has shape {found.shape}, expected {parameter.shape}"
            )
        if not _same_kind(found.dtype, parameter.dtype):
            raise ModelFileError(
                folder,
                f"tensor {name!r} holds {dtype_name(found.dtype)}, "
                f"expected {dtype_name(parameter.dtype)}",
            )


def start(weights: dict[str, mx.array]) -> None:
    """Begin to evaluate the largest weight in the background."""
    mx.async_eval(weights[_largest_first(weights)[0]])  # type: ignore[no-untyped-call]


def bring_in(
    weights: dict[str, mx.array], folder: Path, progress: Callable[[float], None] | None = None
) -> None:
    """Evaluate the weights, the largest first.

    Raises:
        ModelFileError: A tensor could not be read.
    """
    total = sum(array.nbytes for array in weights.values()) or 1
    done = 0
    for name in _largest_first(weights):
        try:
            mx.eval(weights[name])
        except RuntimeError as error:
            raise ModelFileError(folder, f"tensor {name!r} cannot be read: {error}") from error
        done += weights[name].nbytes
        if progress is not None:
            progress(done / total)


def flat_parameters(model: nn.Module) -> dict[str, mx.array]:
    """Return the model's parameters by dotted name, lazy ones too."""
    found: Any = tree_flatten(model.parameters())
    return dict(found)


def main_dtype(weights: Iterable[mx.array]) -> mx.Dtype:
    """Return the dtype that most elements of the floating tensors have."""
    sizes: dict[mx.Dtype, int] = {}
    for array in weights:
        if mx.issubdtype(array.dtype, mx.floating):
            sizes[array.dtype] = sizes.get(array.dtype, 0) + array.size
    return max(sizes, key=lambda dtype: sizes[dtype], default=mx.float32)


def _largest_first(weights: Mapping[str, mx.array]) -> list[str]:
    """The last to be unpacked are the smallest: what unpacking holds never tops the peak."""
    return sorted(weights, key=lambda name: weights[name].nbytes, reverse=True)


def _packing(
    path: str, module: nn.Module, weights: Mapping[str, mx.array], folder: Path
) -> Packing:
    scales = weights[f"{path}.scales"]
    packed = weights.get(f"{path}.weight")
    if packed is None:
        raise ModelFileError(folder, f"tensor '{path}.weight' is missing")
    shape = module.weight.shape
    group_size, group_rest = divmod(shape[-1], scales.shape[-1])
    bits, bits_rest = divmod(packed.shape[-1] * 32, shape[-1])
    fits = (
        group_rest == bits_rest == 0
        and packed.shape[:-1] == scales.shape[:-1] == shape[:-1]
        and packed.dtype == mx.uint32
    )
    known = bits in _BITS and group_size in _GROUP_SIZES
    mode = "affine"
    if scales.dtype == mx.uint8:
        mode = _BYTE_SCALE_MODES.get((bits, group_size), "")
    if not (fits and known and mode):
        raise ModelFileError(
            folder,
            f"tensor '{path}.weight' ({dtype_name(packed.dtype)} {packed.shape}, scales "
            f"{scales.shape}) is not a packed weight of shape {shape}",
        )
    biases = weights.get(f"{path}.biases")
    if mode == "affine" and (biases is None or biases.shape != scales.shape):
        raise ModelFileError(
            folder, f"tensor '{path}.biases' is missing or does not fit its scales"
        )
    return Packing(bits=bits, group_size=group_size, mode=mode)


def _same_kind(found: mx.Dtype, expected: mx.Dtype) -> bool:
    if mx.issubdtype(expected, mx.floating):
        return mx.issubdtype(found, mx.floating)
    if expected in (mx.uint32, mx.uint8):  # packed weights and byte scales
        return found == expected
    return mx.issubdtype(found, mx.integer) or found == mx.bool_


def _named(names: list[str]) -> str:
    """Name up to three tensors and count the rest, with the verb that fits."""
    if len(names) == 1:
        return f"tensor {names[0]!r} is"
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensors {shown}{more} are"
