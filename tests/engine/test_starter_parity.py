"""The starter's answers against mlx-lm's own loop, in one process with the fast BLAS.

Twenty prompts of 128 tokens take minutes on a CPU: ``python -m benchmarks.parity_starter`` is the
full comparison, this its first prompts.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMPTS, TOKENS = 4, 32


@pytest.fixture(scope="module")
def compared(starter_folder: Path) -> list[dict[str, object]]:
    asked = ["--prompts", str(PROMPTS), "--tokens", str(TOKENS), "--json"]
    asked += ["--cache", str(starter_folder.parents[1])]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.parity_starter", str(starter_folder), *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.starter
@pytest.mark.timeout(300)
def test_greedy_answers_are_mlx_lms(compared: list[dict[str, object]]):
    assert len(compared) == PROMPTS
    assert [one for one in compared if not one["same_text"]] == []
    assert max(one["tokens"] for one in compared) == TOKENS


@pytest.mark.starter
@pytest.mark.timeout(300)
def test_64_steps_have_mlx_lms_logits_to_the_bit(compared: list[dict[str, object]]):
    assert compared[0]["same_logits"] is True
