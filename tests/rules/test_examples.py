"""Every example of ``mlxcel generate``, on a page or in its help, names a prompt it takes."""

import shlex
from pathlib import Path

import pytest

from mlxcel_cli import app, generation
from mlxcel_cli.commands.generate import EXAMPLES
from mlxcel_cli.prompt_input import plan_prompt
from tests.rules.test_docs import PAGES, commands, text_of

HELP = [line.rpartition("| ")[2] for line in EXAMPLES.splitlines() if "mlxcel " in line]
TYPED = [
    *(words for page in PAGES for words in commands(text_of(page), "mlxcel")),
    *(shlex.split(line)[1:] for line in HELP),
]
GENERATE = [tuple(words) for words in TYPED if words[:1] == ["generate"] and len(words) > 1]


def test_there_are_examples():
    assert len(GENERATE) > 8


@pytest.mark.parametrize("words", sorted(set(GENERATE)), ids=" ".join)
def test_an_example_s_sources_go_together(words, monkeypatch, tmp_path):
    asked: list[generation.GenerateOptions] = []
    monkeypatch.setattr(generation, "generate_once", lambda options: asked.append(options) or 0)
    monkeypatch.setenv("MLXCEL_CONFIG", str(tmp_path / "none.toml"))
    assert app.run(list(words)) == 0
    # A stdin that is a file, as behind a pipe.
    with Path(__file__).open("rb") as stdin:
        for options in asked:
            plan_prompt(options.words, options.prompt, stdin)
