from types import SimpleNamespace

import pytest

from engine.kv.choose import FULL_WINDOW_FACTOR, SOLO_FAMILIES, choose_storage, fresh_caches
from engine.kv.pool import Pool
from engine.kv.solo import Solo
from tests.engine.rigs import tiny_model

WINDOW = 16


@pytest.mark.parametrize(
    ("family", "context", "kind"),
    [
        ("llama", 512, "dense"),
        ("qwen3", 512, "dense"),
        ("gemma3", FULL_WINDOW_FACTOR * WINDOW, "window as a mask"),
        ("gemma3", FULL_WINDOW_FACTOR * WINDOW + 1, "ring"),
        ("hybrid", 512, "recurrent"),
    ],
)
def test_what_a_family_keeps_decides_its_storage(family: str, context: int, kind: str):
    choice = choose_storage(tiny_model(family), family=family, context_tokens=context)
    assert choice.kind == kind
    assert isinstance(choice.storage, Pool)
    assert choice.why


def test_windows_are_named_where_they_matter():
    choice = choose_storage(tiny_model("gemma3"), family="gemma3", context_tokens=512)
    assert "512" in choice.why
    assert str(WINDOW) in choice.why


def model_with(*names: str) -> SimpleNamespace:
    caches = [type(name, (), {"keep": 4, "max_size": WINDOW})() for name in names]
    return SimpleNamespace(make_cache=lambda: caches, layers=names)


@pytest.mark.parametrize("name", ["ChunkedKVCache", "RotatingKVCache", "SomethingNew"])
def test_a_cache_that_rows_cannot_share_gives_each_row_its_own(name: str):
    choice = choose_storage(model_with("KVCache", name), family="new", context_tokens=512)
    assert isinstance(choice.storage, Solo)
    assert choice.kind == "one row at a time"
    assert name in choice.why


@pytest.mark.parametrize("family", sorted(SOLO_FAMILIES))
def test_families_whose_batches_are_wrong_upstream_run_one_row_at_a_time(family: str):
    choice = choose_storage(tiny_model("llama"), family=family, context_tokens=512)
    assert isinstance(choice.storage, Solo)


def test_a_family_without_a_word_on_caches_gets_full_ones():
    caches = fresh_caches(SimpleNamespace(layers=[1, 2, 3]))
    assert [type(cache).__name__ for cache in caches] == ["KVCache"] * 3


def test_lists_of_caches_are_handed_over_as_such_lists():
    from mlx_lm.models.cache import CacheList, KVCache

    model = SimpleNamespace(make_cache=lambda: [CacheList(KVCache(), KVCache()), KVCache()])
    choice = choose_storage(model, family="mla", context_tokens=512)
    slot = choice.storage.open(8)
    with choice.storage.one(slot, 1) as caches:
        assert isinstance(caches[0], CacheList)
        assert len({id(cache) for cache in [*caches[0].caches, caches[1]]}) == 3
