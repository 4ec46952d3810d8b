"""Files in prompts: what is a mention, what may be attached, what no text can break."""

import os
from pathlib import Path

import pytest

from engine.errors import InvalidParams
from mlxcel_cli.chat.attachments import LARGEST_BYTES, attach, complete_path, mention, read_text


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "two words.txt").write_text("words")
    (tmp_path / ".hidden").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    "prompt",
    ["explain @a.py", "explain @a.py, please", "@a.py @a.py", "(see @./a.py)".strip("()")],
)
def test_a_mentioned_file_follows_the_prompt_in_a_fence(prompt):
    assert attach(prompt) == f"{prompt}\n\na.py:\n```py\nx = 1\n```"


@pytest.mark.parametrize("prompt", ["mail me@a.py", "@nobody", "@sub", "no mention", "@", '@""'])
def test_what_names_no_file_stays_text(prompt):
    assert attach(prompt) == prompt


def test_a_name_with_spaces_is_quoted(folder):
    assert mention(folder / "two words.txt").startswith('@"')
    assert attach('read @"two words.txt"').endswith("```txt\nwords\n```")


def test_no_fence_inside_a_file_closes_its_block(folder):
    (folder / "b.md").write_text("````\n```\n````")
    assert attach("@b.md").endswith("`````md\n````\n```\n````\n`````")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x" * (LARGEST_BYTES + 1), "at most"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a\0b", "null bytes"),
    ],
)
def test_what_cannot_be_attached_is_refused_by_name(folder, content, said):
    (folder / "bad").write_bytes(content)
    with pytest.raises(InvalidParams, match=said) as caught:
        attach("@bad")
    assert caught.value.field == "@bad"


def test_paths_are_completed_folders_with_a_slash(folder):
    assert complete_path("") == ["a.py", "sub/", "two words.txt"]
    assert complete_path("a") == ["a.py"]
    assert complete_path(".h") == [".hidden"]
    assert complete_path(f"{folder}/s") == [f"{folder}/sub/"]
    assert complete_path("nowhere/x") == []


@pytest.mark.parametrize("prompt", ["see @~nobody-of-this-name/x", "@a\0b", "@" + "x" * 5000])
def test_a_path_that_cannot_be_is_text(folder, prompt):
    assert attach(prompt) == prompt
    assert complete_path(prompt.partition("@")[2] + "/") == []


def test_a_file_that_has_no_size_is_read_to_the_bound(folder, monkeypatch):
    monkeypatch.setattr("mlxcel_cli.chat.attachments.LARGEST_BYTES", 10)
    monkeypatch.setattr(Path, "stat", lambda self: os.stat_result([0o100644, *[0] * 9]))
    (folder / "grows.txt").write_bytes(b"x" * 11)
    with pytest.raises(InvalidParams, match="has more bytes; at most 10"):
        read_text(folder / "grows.txt")


def test_folders_pipes_and_devices_are_not_read(folder):
    os.mkfifo(folder / "pipe")
    for name in (".", "pipe", "/dev/zero"):
        assert attach(f"@{name}") == f"@{name}"
