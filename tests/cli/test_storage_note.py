"""What `-v` says of how a model's KV is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.models.tiny import write_tiny


@pytest.mark.parametrize(
    ("context", "said"),
    [
        pytest.param("64", "KV storage: window as a mask", id="a context of four windows"),
        pytest.param("65", "KV storage: ring", id="one token more"),
    ],
)
def test_verbose_says_how_window_layers_keep_their_kv_and_why(
    tmp_path: Path, context: str, said: str
):
    model = write_tiny(tmp_path / "tiny", "gemma3")
    asked = ["-v", "-n", "1", "--force", "-m", str(model), "--ctx-size", context, "hi"]
    done = subprocess.run(
        [sys.executable, "-m", "mlxcel_cli", "generate", *asked],
        capture_output=True,
        text=True,
        env={**os.environ, "MLXCEL_BLAS": "off"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert f"the context of {context} tokens" in done.stderr
