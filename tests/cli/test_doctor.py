"""Tests of ``mlxcel doctor``: what it tells people, programs and machines that lack something."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.models.catalog import ModelPlaces
from tests.engine.models.model_folders import add_hub_model

NO_MLX = "import sys; sys.modules['mlx.core'] = None; from mlxcel_cli.app import main; main()"


@pytest.fixture
def places() -> ModelPlaces:
    return ModelPlaces(
        home=Path(os.environ["MLXCEL_HOME"]), hub_cache=Path(os.environ["HF_HOME"]) / "hub"
    )


def doctor(*arguments: str, program: tuple[str, ...] = ("-m", "mlxcel_cli"), **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *program, "doctor", *arguments],
        env=os.environ | {"MLXCEL_BLAS": "off"} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_report_for_people_fits_a_terminal_and_says_what_is_there():
    lines = doctor().splitlines()
    labels = {line.split()[0] for line in lines if not line.startswith(" ")}
    assert {"versions", "python", "device", "blas", "memory", "cache", "models"} <= labels
    # A path has no place to break.
    assert [line for line in lines if len(line) > 80 and len(line.split()) > 2] == []


def test_the_report_for_programs_is_one_json_object():
    report = json.loads(doctor("--json"))
    assert report["blas"]["route"] in {"off", "native"}
    assert report["blas"]["gflops"] > 0
    assert report["device"]["kind"] in {"metal", "cuda", "cpu"}
    assert report["memory"]["available_bytes"] > 0
    assert set(report["versions"]) >= {"mlxcel", "mlx", "mlx-lm"}


def test_a_broken_model_is_a_warning_that_says_what_to_type(places: ModelPlaces):
    broken = add_hub_model(places, "owner/broken")
    (broken / "model.safetensors").unlink()
    report = json.loads(doctor("--json"))
    assert any("mlxcel models rm owner/broken" in warning for warning in report["warnings"])


def test_the_options_file_in_use_is_named(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text("")
    report = json.loads(doctor("--json", "--config", str(file)))
    assert report["options_file"] == {"path": str(file), "exists": True}


def test_a_machine_without_a_backend_is_an_error_that_says_what_to_type():
    report = json.loads(doctor("--json", program=("-c", NO_MLX)))
    assert report["device"] is None
    assert any("pip install" in warning for warning in report["warnings"])
