"""What is said of how a model's KV is kept, and of a context it was not made for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.models.tiny import write_tiny


def notes_of(model: Path, context: str, *options: str) -> str:
    """What ``generate`` writes to stderr."""
    asked = ["-n", "1", "--force", "-m", str(model), "--ctx-size", context, *options, "hi"]
    done = subprocess.run(
        [sys.executable, "-m", "mlxcel_cli", "generate", *asked],
        capture_output=True,
        text=True,
        env={**os.environ, "MLXCEL_BLAS": "off"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


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
    notes = notes_of(model, context, "-v")
    assert said in notes
    assert f"the context of {context} tokens" in notes


@pytest.mark.parametrize(("context", "is_cut"), [("256", False), ("257", True)])
def test_a_context_beyond_the_model_s_own_is_cut_with_a_word(
    tmp_path: Path, context: str, is_cut: bool
):
    model = write_tiny(tmp_path / "tiny", "llama", max_position_embeddings=256)
    said = f"a context of {context} tokens is cut to 256, for which tiny was made"
    assert (said in notes_of(model, context)) == is_cut
