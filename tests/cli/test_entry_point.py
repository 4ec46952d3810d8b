"""The first moments of ``mlxcel``: Ctrl-C ends it, and no traceback is shown."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, signal, sys, time
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)

class Interrupted:
    def find_spec(self, name, *_):
        if name == "mlxcel_cli.app":
            os.kill(os.getpid(), signal.SIGINT)
            print("continues")
            sys.exit(7)

from mlxcel_cli import entry_point
sys.meta_path.insert(0, Interrupted())
entry_point.{}()
"""


def run(entry: str, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{}", entry), how],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("entry", ["main", "serve_main"])
def test_ctrl_c_while_the_program_is_imported_ends_it_without_a_word(entry):
    ran = run(entry, "as usual")
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


def test_where_a_shell_ignores_ctrl_c_it_stays_ignored():
    assert run("main", "ignored").returncode == 7


def test_the_entry_point_imports_nothing_of_the_program_before():
    code = "import sys, mlxcel_cli.entry_point; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {name for name in loaded if name.startswith(("mlxcel", "engine"))}
    assert ours == {"mlxcel_cli", "mlxcel_cli.entry_point"}
    # While `signal` makes its enums, Ctrl-C would show a traceback.
    assert "signal" not in loaded
