"""Which storage a model's rows live in, chosen once when the engine is made.

mlx-lm's families say through ``make_cache`` what each layer keeps; that list, not the family's
name, decides. Sliding windows keep the full length (and so can be trimmed) while the context is
short enough to afford it, a ring beyond.
"""

from dataclasses import dataclass
from typing import Any

from engine.kv.dense import DenseLayer
from engine.kv.layer import PoolLayer
from engine.kv.pool import Pool
from engine.kv.ring import RingLayer
from engine.kv.solo import Solo
from engine.kv.state import StateLayer
from engine.kv.storage import Storage

FULL_WINDOW_FACTOR = 4
"""A window layer keeps the full length up to a context of this many windows."""

SOLO_FAMILIES = {
    "afm7": "takes positions from key lengths",
    "gpt_bigcode": "takes positions as one number",
    "longcat_flash_ngram": "keeps a state that grows with a row's first tokens",
    "minimax_m3_vl": "chooses blocks of keys by slot, as if all rows ended at the same one",
    "phi3small": "adds a batch's mask to scores of another shape",
}
"""Families whose ragged batches are wrong or fail in mlx-lm itself (0.32.2), and why."""

GROUPED_MASK_FAMILIES = frozenset({"gemma2"})
"""Families that mask scores of [B, key heads, queries a key, L, K] where heads are grouped."""

SCALAR_ROPE = "DynamicNTKScalingRoPE"
"""mlx-lm's rotation whose base follows the length, and which takes one length for all rows."""


@dataclass(frozen=True, slots=True)
class StorageChoice:
    """A storage and the sentence that explains it."""

    storage: Storage
    kind: str
    """``dense``, ``window as a mask``, ``ring``, ``recurrent`` or ``one row at a time``."""
    why: str


def choose_storage(model: Any, *, family: str, context_tokens: int) -> StorageChoice:
    """The storage for ``model``'s rows under a context bound.

    Args:
        model: an mlx-lm model.
        family: its ``model_type``.
        context_tokens: most tokens a row will hold.
    """
    caches = fresh_caches(model)
    if _has_scalar_rope(model):
        why = f"{family} rotates by a base that follows the length of one row's forward"
        return _solo(model, why, cuts_inside=False)
    if family in SOLO_FAMILIES:
        return _solo(model, f"{family} {SOLO_FAMILIES[family]}")
    chosen = _Layers(context_tokens, grouped=_masks_grouped_heads(model, family))
    handed = [chosen.take(cache) for cache in caches]
    if None in handed:
        names = sorted({type(cache).__name__ for cache in caches})
        return _solo(model, f"{family} keeps {', '.join(names)}, which rows cannot share")
    return StorageChoice(Pool(chosen.layers, handed), *chosen.explain())


def _solo(model: Any, why: str, *, cuts_inside: bool = True) -> StorageChoice:
    storage = Solo(lambda: fresh_caches(model), cuts_inside=cuts_inside)
    return StorageChoice(storage, "one row at a time", why)


def _has_scalar_rope(model: Any) -> bool:
    modules = model.modules() if hasattr(model, "modules") else ()
    return any(type(module).__name__ == SCALAR_ROPE for module in modules)


def _masks_grouped_heads(model: Any, family: str) -> bool:
    if family not in GROUPED_MASK_FAMILIES:
        return False
    return bool(model.args.num_attention_heads != model.args.num_key_value_heads)


def fresh_caches(model: Any) -> list[Any]:
    """mlx-lm's own caches for one row."""
    if hasattr(model, "make_cache"):
        return list(model.make_cache())
    # mlx_lm is in place once there is a model.
    from mlx_lm.models.cache import KVCache

    return [KVCache() for _ in model.layers]


class _Layers:
    """Translates mlx-lm's caches into pool layers, and notes which kinds there were."""

    def __init__(self, context_tokens: int, *, grouped: bool) -> None:
        self.layers: list[PoolLayer] = []
        self._grouped = grouped
        self._context_tokens = context_tokens
        self._kinds: set[str] = set()
        self._windows: set[int] = set()

    def take(self, cache: Any) -> object | None:
        """What the model is handed for ``cache``; None: the pool has no such layer."""
        name = type(cache).__name__
        layer: PoolLayer
        if name == "KVCache":
            layer = DenseLayer(grouped=self._grouped)
        elif name == "RotatingKVCache" and cache.keep == 0:
            self._windows.add(cache.max_size)
            if self._context_tokens <= FULL_WINDOW_FACTOR * cache.max_size:
                layer = DenseLayer(cache.max_size)
            else:
                layer = RingLayer(cache.max_size)
        elif name == "ArraysCache":
            layer = StateLayer(len(cache.cache))
        elif name == "CacheList":
            parts = [self.take(part) for part in cache.caches]
            return None if None in parts else type(cache)(*parts)
        else:
            return None
        self._kinds.add(type(layer).__name__)
        self.layers.append(layer)
        return layer

    def explain(self) -> tuple[str, str]:
        """The kind and the sentence of `StorageChoice`."""
        window = ", ".join(map(str, sorted(self._windows)))
        if "StateLayer" in self._kinds:
            return "recurrent", "some layers keep recurrent state, which can be undone by 2 tokens"
        if "RingLayer" in self._kinds:
            return "ring", (
                f"the context of {self._context_tokens} tokens is more than {FULL_WINDOW_FACTOR} "
                f"windows of {window}: window layers keep only their newest tokens"
            )
        if self._windows:
            return "window as a mask", (
                f"the context of {self._context_tokens} tokens is at most {FULL_WINDOW_FACTOR} "
                f"windows of {window}: every layer keeps the full length"
            )
        return "dense", "every layer keeps the full length"
