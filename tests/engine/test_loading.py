from dataclasses import replace

import pytest

from engine import loading
from engine.errors import ModelNotFound
from engine.loading import KV_SHARE, OpenedModel, OpenOptions, open_model
from tests.engine.models.tiny import write_tiny

OPTIONS = OpenOptions(blas="off", offline=True)
FREE_BYTES = 10_000_000


@pytest.fixture
def opened(tmp_path) -> OpenedModel:
    return open_model(str(write_tiny(tmp_path / "tiny")), OPTIONS)


def test_folders_and_offline_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MLXCEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    options = OpenOptions()
    assert (options.places.home, options.places.hub_cache) == (tmp_path / "home", tmp_path / "hub")
    assert not options.offline
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert OpenOptions().offline


def test_the_model_before_is_kept_while_the_next_one_is_not_found(tmp_path):
    found: list[str] = []
    with pytest.raises(ModelNotFound):
        open_model("no/such", OPTIONS, when_found=lambda: found.append("no/such"))
    assert found == []
    open_model(str(write_tiny(tmp_path / "tiny")), OPTIONS, when_found=lambda: found.append("tiny"))
    assert found == ["tiny"]


def test_a_context_beyond_the_model_s_is_cut_with_a_warning(tmp_path):
    folder = str(write_tiny(tmp_path / "tiny"))
    opened = open_model(folder, replace(OPTIONS, context_tokens=10_000))
    assert opened.engine.context_tokens == 512
    assert any("is cut to 512" in warning for warning in opened.warnings)
    assert open_model(folder, replace(OPTIONS, context_tokens=100)).engine.context_tokens == 100


def test_kv_may_take_most_of_the_free_memory(opened, monkeypatch):
    monkeypatch.setattr(loading, "memory_available", lambda device: FREE_BYTES)
    facts = opened.loaded.facts
    free = FREE_BYTES if opened.device == "cpu" else FREE_BYTES - facts.weight_bytes
    per_token = facts.kv_bytes_per_token
    assert opened.kv_budget_tokens() == int(free * KV_SHARE) // per_token
    cache = 10**12
    assert opened.kv_budget_tokens(cache) == int((free - free // 2) * KV_SHARE) // per_token


def test_kv_has_no_bound_where_nothing_is_known_of_memory_or_it_is_forced(opened, monkeypatch):
    monkeypatch.setattr(loading, "memory_available", lambda device: 0)
    assert opened.kv_budget_tokens() is None
    monkeypatch.setattr(loading, "memory_available", lambda device: FREE_BYTES)
    opened.options = replace(OPTIONS, force=True)
    assert opened.kv_budget_tokens() is None


def test_closing_twice_is_harmless(opened):
    opened.close()
    opened.close()


def test_widths_are_kept_in_the_home_of_the_options(opened):
    assert opened.widths_file.path.is_relative_to(opened.options.places.home)
