"""Decides the form and dtype that a checkpoint's weights take in memory.

On MLX's CPU backend products of dense float32 go to BLAS; packed weights and 16-bit floats run on
one thread without it, and packed weights with 16-bit scales 7 times slower still
(docs/benchmarks.md). On a GPU the checkpoint's own form is the fast one.
"""

from dataclasses import dataclass
from enum import StrEnum

import mlx.core as mx

from engine.errors import InvalidParams

GIB = 2**30

_DTYPES = {
    "float32": mx.float32, "f32": mx.float32, "fp32": mx.float32,
    "float16": mx.float16, "f16": mx.float16, "fp16": mx.float16,
    "bfloat16": mx.bfloat16, "bf16": mx.bfloat16,
}  # fmt: skip


class WeightForm(StrEnum):
    """Whether packed weights are unpacked when they are loaded."""

    AUTO = "auto"
    DENSE = "dense"
    QUANTIZED = "quantized"


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The form a checkpoint's weights take in memory."""

    dense: bool
    dtype: mx.Dtype | None
    """Of floating tensors, scales included; None keeps the checkpoint's own."""
    note: str
    """What was chosen and why."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the choice depends on."""

    packed: bool
    weights_count: int
    """Weights when unpacked."""
    dtype: mx.Dtype
    """Of most floating tensors of the checkpoint."""
    on_cpu: bool
    available_bytes: int
    declared: mx.Dtype | None = None
    """The 16-bit type the model says it computes in; a converted GGUF also stores float32."""


def parse_dtype(name: str | None) -> mx.Dtype | None:
    """Return the dtype of that name.

    Raises:
        InvalidParams: `name` is not a floating dtype weights can have.
    """
    if name is None:
        return None
    try:
        return _DTYPES[name.lower()]
    except KeyError:
        raise InvalidParams(
            "dtype", f"{name!r} is not one of float32, float16 and bfloat16"
        ) from None


def dtype_name(dtype: mx.Dtype) -> str:
    """Return ``"float32"`` and the like."""
    return str(dtype).removeprefix("mlx.core.")


def choose_form(stored: Stored, form: WeightForm, dtype: mx.Dtype | None) -> FormChoice:
    """Choose the form that runs fastest where it fits, unless the caller decided.

    Raises:
        InvalidParams: Quantized weights are asked of a checkpoint that has none.
    """
    if form is WeightForm.QUANTIZED and not stored.packed:
        raise InvalidParams("quantized", "this checkpoint's weights are not quantized")
    if not stored.on_cpu:
        return _choose_on_gpu(stored, form, dtype)
    return _choose_on_cpu(stored, form, dtype)


def _choose_on_gpu(stored: Stored, form: WeightForm, dtype: mx.Dtype | None) -> FormChoice:
    dense = form is WeightForm.DENSE or not stored.packed
    kind = "dense" if dense else "quantized"
    if dtype is not None:
        return FormChoice(
            dense=dense, dtype=dtype, note=f"{kind} weights in {dtype_name(dtype)}, as asked"
        )
    if dense and stored.packed:
        return FormChoice(dense=True, dtype=stored.dtype, note="dense weights, as asked")
    if stored.dtype == mx.float32 and stored.declared is not None:
        named = dtype_name(stored.declared)
        return FormChoice(
            dense=dense, dtype=stored.declared, note=f"{kind} weights in {named}, the model's own"
        )
    return FormChoice(dense=dense, dtype=None, note=f"{kind} weights as the checkpoint has them")


def _choose_on_cpu(stored: Stored, form: WeightForm, dtype: mx.Dtype | None) -> FormChoice:
    wanted = dtype or mx.float32
    named = dtype_name(wanted)
    dense_bytes = stored.weights_count * wanted.size
    fits = dense_bytes + max(GIB, dense_bytes // 8) <= stored.available_bytes
    size = f"{dense_bytes / GIB:.1f} of {stored.available_bytes / GIB:.1f} GiB available"
    if form is not WeightForm.AUTO or dtype is not None:
        dense = form is WeightForm.DENSE or not stored.packed or (fits and form is WeightForm.AUTO)
        note = (
            f"dense {named} weights, as asked"
            if dense
            else (f"quantized weights with {named} scales, as asked")
        )
    elif fits:
        dense = True
        note = f"dense float32 weights: fastest on the CPU, and they fit ({size})"
    elif stored.packed:
        dense = False
        note = f"quantized weights with float32 scales: dense ones would take {size}"
    else:
        kept = dtype_name(stored.dtype)
        why = "" if stored.dtype == mx.float32 else f": float32 would take {size}"
        return FormChoice(dense=True, dtype=None, note=f"{kept} weights as stored{why}")
    return FormChoice(dense=dense, dtype=wanted, note=note)
