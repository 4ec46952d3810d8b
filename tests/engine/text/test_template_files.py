"""Where a model's folder keeps its chat templates."""

import json

import pytest

from engine.errors import ModelFileError
from engine.text.template import find_templates


def write_config(folder, value, name="tokenizer_config.json"):
    (folder / name).write_text(json.dumps({"chat_template": value}))


def test_a_text_in_the_config_is_the_default(tmp_path):
    write_config(tmp_path, "a")
    assert find_templates(tmp_path) == (tmp_path / "tokenizer_config.json", {"default": "a"})


def test_a_list_in_the_config_has_names(tmp_path):
    entries = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write_config(tmp_path, entries)
    found = find_templates(tmp_path)
    assert found == (tmp_path / "tokenizer_config.json", {"default": "a", "tool_use": "b"})


def test_its_own_file_comes_first_then_its_own_json(tmp_path):
    write_config(tmp_path, "config")
    write_config(tmp_path, "json", "chat_template.json")
    assert find_templates(tmp_path) == (tmp_path / "chat_template.json", {"default": "json"})
    (tmp_path / "chat_template.jinja").write_text("jinja é", encoding="utf-8")
    assert find_templates(tmp_path) == (tmp_path / "chat_template.jinja", {"default": "jinja é"})


@pytest.mark.parametrize("value", [None, "", []])
def test_nothing_is_no_template(tmp_path, value):
    write_config(tmp_path, value)
    assert find_templates(tmp_path) is None


@pytest.mark.parametrize("value", [3, {"a": "b"}, [3], [{"name": "default"}]])
def test_another_shape_names_the_file(tmp_path, value):
    write_config(tmp_path, value)
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: chat_template"):
        find_templates(tmp_path)


def test_a_template_that_is_no_text_names_the_file(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja"):
        find_templates(tmp_path)
