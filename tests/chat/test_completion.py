"""What TAB completes in a prompt."""

import pytest

from mlxcel_cli.chat.completion import completed, completions


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("notes.md", "notebook.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize(
    ("before", "added"),
    [
        ("/he", "lp "),
        ("/s", ""),
        ("/re", ""),
        ("see @no", "te"),
        ("see @notes", ".md "),
        ("@fo", "lder/"),
        ("plain", ""),
        ("/set te", ""),
        ("", ""),
    ],
)
def test_a_tab_adds_what_all_candidates_share(before, added):
    assert completed(before) == added


def test_candidates_are_told():
    assert completions("/li") == ("/li", [])
    assert completions("a @note") == ("@note", ["@notebook.py", "@notes.md"])
