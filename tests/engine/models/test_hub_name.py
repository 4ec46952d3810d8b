"""Tests of engine/models/hub_name.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.hub_name import HubName, parse_hub_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mlx-community/Qwen3-0.6B-4bit", HubName("mlx-community", "Qwen3-0.6B-4bit")),
        ("a/b", HubName("a", "b")),
        ("owner/name:Q4_0", HubName("owner", "name", "Q4_0")),
        ("owner/name:model-Q4_0.gguf", HubName("owner", "name", "model-Q4_0.gguf")),
    ],
)
def test_a_hub_id_is_read_and_written_back(text, name):
    assert parse_hub_name(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("name", id="no owner"),
        pytest.param("a/b/c", id="too deep"),
        pytest.param("../b", id="a parent folder"),
        pytest.param("a/..", id="a parent folder as the name"),
        pytest.param("a/b..c", id="two dots"),
        pytest.param("a/b--c", id="two dashes, the cache's own separator"),
        pytest.param(".a/b", id="a hidden owner"),
        pytest.param("a/b:", id="an empty file"),
        pytest.param("a/b:../c.gguf", id="a file outside"),
        pytest.param("a/b:x/y.gguf", id="a file below"),
        pytest.param("a/b\n", id="a line end"),
        pytest.param("ä/b", id="a character the hub does not allow"),
        pytest.param("", id="nothing"),
    ],
)
def test_what_is_no_hub_id_is_none(text):
    assert parse_hub_name(text) is None


@given(st.text())
def test_no_hub_id_can_leave_a_folder(text):
    name = parse_hub_name(text)
    if name is not None:
        parts = [name.owner, name.name, name.file or "x"]
        assert not any(part in (".", "..") or "/" in part or "\\" in part for part in parts)
