"""Rule: the chat's first screen waits for nothing that it does not show."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.tree import ROOT

NOT_YET = (
    # A model and what reads it
    "mlx", "mlx_lm", "transformers", "tokenizers", "numpy", "jinja2", "huggingface_hub", "msgspec",
    # The other front ends, and clients
    "prompt_toolkit", "mlxcel_cli.repl", "aiohttp", "mlxcel_cli.serve", "http.client", "pydantic",
    # What answers and dialogs are shown with
    "markdown_it", "textual.widgets._markdown", "textual.widgets._collapsible",
    "mlxcel_cli.tui.dialogs", "mlxcel_cli.engine_backend",
)  # fmt: skip

PROGRAM = """
import sys
from functools import partialmethod
from mlxcel_cli import app, chat_front
from mlxcel_cli.tui.app import ChatApp

def tell_and_leave(self):
    with open(sys.argv[-1], "w") as file:
        print(*sys.modules, file=file)
    self.exit(0)

chat_front.can_show_screens = lambda environ: True
ChatApp.run = partialmethod(ChatApp.run, headless=True)
ChatApp.begin = tell_and_leave
sys.exit(app.run(["chat", "--no-save", "--theme", "light"]))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> frozenset[str]:
    """The modules that are loaded when the first screen is there."""
    home: Path = tmp_path_factory.mktemp("home")
    environ = {"MLXCEL_HOME": str(home), "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    report = home / "modules"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(report)],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return frozenset(report.read_text().split())


def test_the_screen_was_there(loaded):
    assert {"mlxcel_cli.tui.transcript", "textual.widgets._text_area"} <= loaded


@pytest.mark.parametrize("name", NOT_YET)
def test_the_first_screen_is_drawn_without(loaded, name):
    assert name not in loaded
