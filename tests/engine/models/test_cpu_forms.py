import math
from types import SimpleNamespace

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import activations, base, llama, switch_layers

from engine.models import cpu_forms
from engine.models.cpu_forms import attention, stock_forms, swiglu, use_cpu_forms

CACHE = object()
SCALE = 0.3
HOLDERS = [
    (base, "scaled_dot_product_attention"),
    (llama, "scaled_dot_product_attention"),
    (activations, "swiglu"),
    (llama, "swiglu"),
    (switch_layers, "swiglu"),
]


@pytest.fixture(autouse=True)
def own_functions():
    """Every test begins, and leaves the others, with mlx-lm's own functions or ours as before."""
    with stock_forms():
        yield


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_forms, "_pays", lambda: True)


def stock_attention(queries, keys, values, mask):
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=SCALE, mask=mask)


def rows(batch: int, heads: int, groups: int, width: int, keys: int, seed: int = 0):
    made = mx.random.normal
    key = mx.random.split(mx.random.key(seed), 3)
    return (
        made((batch, heads, width, 8), key=key[0]) * 3,
        made((batch, groups, keys, 8), key=key[1]) * 3,
        made((batch, groups, keys, 8), key=key[2]),
    )


def masks(batch: int, heads: int, width: int, keys: int):
    seen = mx.arange(keys - width, keys)[:, None] >= mx.arange(keys)
    lengths = mx.array([max(1, keys - row) for row in range(batch)])[:, None, None, None]
    ragged = seen & (mx.arange(keys) < lengths)
    slopes = mx.arange(heads)[None, :, None, None] * mx.arange(keys) * 0.1
    return {
        "none": None,
        "causal": "causal",
        "of all rows": seen,
        "of each row": ragged,
        "of each head": mx.broadcast_to(ragged, (batch, heads, width, keys)),
        "of each head of all rows": mx.broadcast_to(seen, (heads, width, keys)),
        "added to each head of all rows": mx.where(seen, slopes[0], -1e9),
        "added": mx.where(seen, 0.0, -1e9),
        "added to each head": mx.where(ragged, slopes, -mx.inf),
    }


@given(
    st.integers(1, 3),
    st.sampled_from([(1, 1), (4, 4), (6, 2), (3, 1)]),
    st.integers(1, 5),
    st.integers(0, 40),
    st.integers(0, 99),
)
def test_attention_is_mlx_s_for_every_kind_of_mask(batch, heads, width, before, seed):
    keys = width + before
    parts = rows(batch, *heads, width, keys, seed)
    for name, mask in masks(batch, heads[0], width, keys).items():
        found = attention(*parts, CACHE, SCALE, mask)
        assert mx.allclose(found, stock_attention(*parts, mask), rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("size", [1e3, 1e15])
def test_the_largest_scores_overflow_nothing(size: float):
    queries, keys, values = rows(1, 2, 2, 3, 9)
    found = attention(queries * size, keys, values, CACHE, SCALE, "causal")
    assert mx.allclose(found, stock_attention(queries * size, keys, values, "causal"), atol=1e-5)


def test_a_query_that_sees_nothing_gets_what_mlx_gives():
    parts = rows(1, 2, 2, 2, 4)
    mask = mx.array([[True, True, False, False], [False] * 4])
    assert mx.allclose(
        attention(*parts, CACHE, SCALE, mask), stock_attention(*parts, mask), atol=1e-5
    )


@pytest.mark.parametrize("kind", [mx.float16, mx.bfloat16])
def test_c1_other_types_get_mlx_lm_s_own_attention(kind: mx.Dtype):
    parts = [part.astype(kind) for part in rows(1, 2, 2, 3, 9)]
    found = attention(*parts, CACHE, SCALE, "causal")
    assert mx.array_equal(found, stock_attention(*parts, "causal"))


def test_c1_sinks_get_mlx_lm_s_own_attention():
    parts, sinks = rows(1, 2, 2, 3, 9), mx.array([0.5, 2.0])
    found = attention(*parts, CACHE, SCALE, "causal", sinks=sinks)
    own = mx.fast.scaled_dot_product_attention(*parts, scale=SCALE, mask="causal", sinks=sinks)
    assert mx.array_equal(found, own)


def test_c1_quantized_caches_get_mlx_lm_s_own_attention():
    queries, keys, values = rows(1, 2, 2, 3, 9)
    wide = [mx.concatenate([part] * 8, axis=-1) for part in (queries, keys, values)]
    packed = [mx.quantize(part, group_size=64, bits=8) for part in wide[1:]]
    cache = SimpleNamespace(bits=8, group_size=64)
    found = attention(wide[0] + 0, *packed, cache, SCALE, "causal")
    own = base.quantized_scaled_dot_product_attention(
        wide[0] + 0, *packed, scale=SCALE, mask="causal", bits=8
    )
    assert mx.array_equal(found, own)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 30), st.integers(0, 40))
def test_c2_a_row_is_bitwise_the_same_alone_and_in_a_padded_batch(others, width, before, behind):
    keys = width + before
    parts = rows(1 + others, 6, 2, width, keys + behind)
    seen = mx.arange(before, keys)[:, None] >= mx.arange(keys + behind)
    mask = mx.broadcast_to(seen, (1 + others, 1, width, keys + behind))
    together = attention(*parts, CACHE, SCALE, mask)
    queries, all_keys, all_values = (part[1:2] for part in parts)
    alone = attention(
        queries, all_keys[:, :, :keys], all_values[:, :, :keys], CACHE, SCALE, seen[:, :keys]
    )
    assert mx.array_equal(together[1:2], alone)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20))
def test_swiglu_is_mlx_lm_s(values: list[float]):
    gate, x = mx.array(values), mx.arange(len(values)) - 3.5
    assert mx.allclose(swiglu(gate, x), activations.swiglu(gate, x), rtol=2e-6, atol=1e-30)


def test_swiglu_of_the_edges():
    gate = mx.array([math.inf, -1e38, 1e38, -200.0, 0.0])
    found = swiglu(gate, mx.ones(5))
    assert found.tolist() == [math.inf, 0.0, mx.array(1e38).item(), 0.0, 0.0]
    assert math.isnan(swiglu(mx.array([math.nan]), mx.ones(1)).item())


def test_c1_other_types_get_mlx_lm_s_own_swiglu():
    gate = mx.array([-3.0, 0.1, 2.0], mx.bfloat16)
    assert mx.array_equal(swiglu(gate, gate), activations.swiglu(gate, gate))


def held() -> list[object]:
    return [getattr(module, name) for module, name in HOLDERS]


def test_every_model_module_gets_the_fast_forms_where_they_pay(paying: None):
    use_cpu_forms()
    assert held() == [attention, attention, swiglu, swiglu, swiglu]


def test_mlx_lm_s_own_stay_where_exp_is_as_fast(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_forms, "_pays", lambda: False)
    before = held()
    use_cpu_forms()
    assert held() == before
    assert attention not in before


def test_mlx_lm_s_own_stay_on_a_gpu(paying: None, monkeypatch: pytest.MonkeyPatch):
    before = held()
    with monkeypatch.context() as patch:
        patch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
        use_cpu_forms()
    assert held() == before


def test_whether_they_pay_is_measured_once():
    assert cpu_forms._pays() is cpu_forms._pays()
    assert cpu_forms._pays.cache_info().currsize == 1


def test_the_fast_forms_come_back_after_an_error_and_whatever_was_set_meanwhile(paying: None):
    use_cpu_forms()

    @stock_forms()
    def fail():
        use_cpu_forms()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert held() == [attention, attention, swiglu, swiglu, swiglu]
    with stock_forms():
        assert attention not in held()
