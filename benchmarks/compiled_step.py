"""What compiling a whole decode step would save: a prototype, for the record, not a path of ours.

One fixed-capacity KV array a layer, the position as an array, the model classes unmodified, all of
it traced once by ``mx.compile``. Host work is what compiling reduces; the device's work stays.
"""

import time
from statistics import median
from typing import Any

import mlx.core as mx

CAPACITY = 256


class _Fixed:
    """A cache whose position is an array, so that one trace serves every step."""

    def __init__(self, keys: mx.array, values: mx.array, offset: mx.array) -> None:
        self.keys, self.values, self.offset = keys, values, offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = mx.slice_update(self.keys, keys, self.offset[None], axes=[2])
        self.values = mx.slice_update(self.values, values, self.offset[None], axes=[2])
        return self.keys, self.values

    def make_mask(self, *_: Any, **__: Any) -> mx.array:
        return (mx.arange(CAPACITY) <= self.offset)[None]


def step_ms(model: Any, *, steps: int, compiled: bool) -> float:
    """Median thread CPU milliseconds of building and dispatching one step."""
    layers = len(model.layers)
    shape = (1, model.args.num_key_value_heads, CAPACITY, model.args.head_dim)

    def step(token: mx.array, offset: mx.array, *kv: mx.array) -> tuple[mx.array, ...]:
        caches = [_Fixed(kv[i], kv[layers + i], offset) for i in range(layers)]
        logits = model(token, cache=caches)[:, -1]
        chosen = mx.argmax(logits, axis=-1)[:, None].astype(mx.int32)
        return (
            chosen, offset + 1, *(c.keys for c in caches), *(c.values for c in caches)
        )  # fmt: skip

    run = mx.compile(step) if compiled else step
    kv: tuple[mx.array, ...] = tuple(mx.zeros(shape) for _ in range(2 * layers))
    token, offset = mx.array([[1]], mx.int32), mx.array(0, mx.int32)
    spent = []
    for _ in range(steps):
        before = token
        started = time.thread_time()
        token, offset, *rest = run(token, offset, *kv)
        kv = tuple(rest)
        mx.async_eval(token, offset, *kv)
        before.tolist()
        spent.append(time.thread_time() - started)
    return median(spent[5:]) * 1000
