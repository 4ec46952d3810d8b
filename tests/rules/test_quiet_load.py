"""Rule: stdout is for answers. Loading a model, whatever it imports on the way, writes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.models.tiny import FAMILIES, write_tiny
from tests.rules.tree import ROOT

LOAD = """
import sys
from pathlib import Path
from engine.models.load import load

load(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_loading_a_model_writes_nothing(family: str, tmp_path: Path):
    folder = write_tiny(tmp_path / family, family)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
