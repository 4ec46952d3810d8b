"""Forms of two of mlx-lm's functions that a CPU computes faster: attention and SwiGLU.

MLX's own ``exp`` takes 12 ns a value on an x86 CPU, a power 5 (mlx 0.32.4: the power is libm's).
A softmax and a sigmoid are mostly that, and in float32 they take half of the time that a prompt
is read in. Both forms are as exact as MLX's to the last bit or two.

mlx-lm's modules hold the functions by name, so the names are set there, for the whole process:
answers are held against mlx-lm as it is within `stock_forms`, storage and loops against mlx-lm's on
the same functions, to the bit. Nothing is changed where MLX's ``exp`` is as fast, as on a GPU.

Invariants (each pinned by a test):
    C1  Other types than float32, attention sinks and quantized caches get mlx-lm's own function.
    C2  A row's result is bitwise the same alone and in a batch, whatever is masked behind it.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from engine.models.mlxlm import import_mlx_lm

PAYS_FROM = 1.5
"""How much faster a power must be than ``exp``: rope, masks and sums are the same for both."""

_LOG2_E = math.log2(math.e)
_TRIED_VALUES = 16384


def use_cpu_forms() -> None:
    """Let the model modules that are loaded by now use the fast forms, where those are faster."""
    if mx.default_device() == mx.Device(mx.cpu) and _pays():
        _put({stock: fast for fast, stock in _forms().items()})


@contextmanager
def stock_forms() -> Iterator[None]:
    """Let all model modules use mlx-lm's own functions meanwhile."""
    forms = _forms()
    was_fast = _put(forms)
    try:
        yield
    finally:
        if was_fast:
            _put({stock: fast for fast, stock in forms.items()})


def attention(  # noqa: PLR0913, PLR0917  # mlx-lm's signature
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """Softmax attention, as mlx-lm's `scaled_dot_product_attention`.

    Args:
        queries: float[B, H, L, D].
        keys: float[B, G, S, D]; H is a multiple of G.
        values: float[B, G, S, E].
        cache: the layer's.
        scale: of the products.
        mask: bool or float, of a shape that broadcasts to [B, H, L, S]; "causal"; or None.
        sinks: float[H] or None.

    Returns:
        float[B, H, L, E].
    """
    plain = sinks is None and not hasattr(cache, "bits")
    if not plain or {queries.dtype, keys.dtype, values.dtype} != {mx.float32}:
        stock = _forms()[attention]
        return stock(  # type: ignore[no-any-return]
            queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks
        )
    batch, heads, width, size = queries.shape
    groups = keys.shape[1]
    grouped = (queries * (scale * _LOG2_E)).reshape(batch, groups, heads // groups, width, size)
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2)
    if mask is not None:
        scores = _masked(scores, mask)
    weights = mx.power(2.0, scores - scores.max(axis=-1, keepdims=True))
    mixed = (weights @ values[:, :, None]) / weights.sum(axis=-1, keepdims=True)
    return mixed.reshape(batch, heads, width, values.shape[-1])


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """``silu(gate) * x``, as mlx-lm's function; any equal shapes."""
    if gate.dtype != mx.float32:
        return _forms()[swiglu](gate, x)  # type: ignore[no-any-return]
    return gate / (1 + mx.power(1 / math.e, gate)) * x


def _masked(scores: mx.array, mask: Any) -> mx.array:
    """The scores, with those of keys that a query may not see at the least float.

    Args:
        scores: float[B, G, H / G, L, S], logarithms to base 2.
        mask: as `attention` takes it.
    """
    _, groups, of_group, width, keys = scores.shape
    if isinstance(mask, str):
        mask = mx.arange(keys - width, keys)[:, None] >= mx.arange(keys)
    if mask.ndim == 3:
        mask = mask[None]
    if mask.ndim == 4:
        heads = mask.shape[1]
        split = (1, 1) if heads == 1 else (groups, of_group)
        mask = mask.reshape(mask.shape[0], *split, *mask.shape[2:])
    if mask.dtype == mx.bool_:
        return mx.where(mask, scores, mx.finfo(mx.float32).min)
    added: mx.array = mask.astype(mx.float32) * _LOG2_E
    return scores + added


@cache
def _forms() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Each fast form and mlx-lm's own function."""
    import_mlx_lm()
    from mlx_lm.models import activations, base

    own: dict[Callable[..., Any], Callable[..., Any]] = {
        attention: base.scaled_dot_product_attention,
        swiglu: activations.swiglu,
    }
    return MappingProxyType(own)


def _put(change: Mapping[Callable[..., Any], Callable[..., Any]]) -> bool:
    """Set the functions' names in mlx-lm's model modules; whether any was another."""
    changed = False
    for path, module in list(sys.modules.items()):
        if not path.startswith("mlx_lm.models."):
            continue
        for name in ("scaled_dot_product_attention", "swiglu"):
            new = change.get(vars(module).get(name))  # type: ignore[arg-type]
            if new is not None:
                setattr(module, name, new)
                changed = True
    return changed


@cache
def _pays() -> bool:
    """Whether a power takes so much less time than ``exp`` here; 2 ms."""
    values = mx.linspace(-20, 0, _TRIED_VALUES)
    mx.eval(values)
    exp_s = min(_seconds(lambda: mx.exp(values)) for _ in range(5))
    power_s = min(_seconds(lambda: mx.power(2.0, values)) for _ in range(5))
    return exp_s > PAYS_FROM * power_s


def _seconds(make: Callable[[], mx.array]) -> float:
    began_s = time.perf_counter()
    mx.eval(make())
    return time.perf_counter() - began_s
