"""The examples of the page about Python, run one after the other with the starter."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.starter
@pytest.mark.timeout(300)
def test_every_example_of_the_page_runs(starter_folder, monkeypatch, capsys):
    monkeypatch.setenv("MLXCEL_HOME", str(starter_folder.parents[1]))
    names: dict[str, object] = {}
    printed = []
    for example in examples():
        exec(compile(example, str(PAGE), "exec"), names)  # a script, line by line
        printed.append(capsys.readouterr().out)
    assert len(printed) > 10
    assert [out for out in printed if out and not out.strip()] == []
    assert printed[0].strip()
    assert "max_tokens must be 0 or more, got -1" in printed[-2]
