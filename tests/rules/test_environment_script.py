"""Rules of .ci/venv: it takes a Python that can serve, or says what to type."""

import subprocess
from pathlib import Path

import pytest

from tests.rules.tree import ROOT

REPORTS = """
case "$2" in
*print*) echo {version} ;;
*version_info*) exit {is_old} ;;
*) exit {is_bare} ;;
esac
"""


def run_script(folder: Path, python: str, backend: str = "cpu") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", ROOT / ".ci/venv", folder / "env of mine", backend],
        env={"PATH": "/usr/bin:/bin", "PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )


def pretend_python(folder: Path, **facts: object) -> str:
    program = folder / "python"
    program.write_text(f"#!/bin/sh{REPORTS.format(**facts)}")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        pytest.param(
            {"version": "3.9", "is_old": 1, "is_bare": 0},
            "needs Python 3.11 or newer; found",
            id="too old",
        ),
        pytest.param(
            {"version": "3.11", "is_old": 0, "is_bare": 1},
            "apt install python3-venv",
            id="without the venv package",
        ),
    ],
)
def test_a_python_that_cannot_serve_is_named_with_what_to_do(
    tmp_path: Path, facts: dict[str, object], advice: str
):
    done = run_script(tmp_path, pretend_python(tmp_path, **facts))
    assert done.returncode == 1
    assert advice in done.stderr


def test_a_missing_python_is_an_error(tmp_path: Path):
    done = run_script(tmp_path, "no-such-python")
    assert done.returncode == 1
    assert "no Python found" in done.stderr


def test_a_sound_environment_is_kept_and_another_backend_s_is_not(tmp_path: Path):
    venv = tmp_path / "env of mine"
    (venv / "bin").mkdir(parents=True)
    pretend = pretend_python(tmp_path, version="3.11", is_old=0, is_bare=0)
    (venv / "bin/python").symlink_to(pretend)
    (venv / ".installed-cpu").touch()

    assert run_script(tmp_path, pretend, "cpu").stdout == ""
    assert venv.exists()
    assert "another backend" in run_script(tmp_path, pretend, "cuda").stdout
    assert not venv.exists()
