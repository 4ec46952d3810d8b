"""``mlxcel bench`` on a tiny model: tables, JSON lines, plots, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.lookup.warm_up import every_width
from mlxcel_cli.bench.measure import width_table
from tests.engine.inside import storage_of
from tests.engine.models.tiny import write_tiny
from tests.engine.rigs import Watched, tiny_engine

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)


@pytest.fixture
def bench(model, monkeypatch, tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"PYTHONPATH": str(ROOT), "MLXCEL_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "mlxcel_cli", "bench", *arguments]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=100
        )

    return run


def test_widths_are_measured_reported_drawn_and_kept(bench, model, tmp_path):
    plot = tmp_path / "widths.svg"
    done = bench("verify-width", str(model), "--repeats", "2", "--json", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    setup, table = (json.loads(line) for line in done.stdout.splitlines())
    assert (setup["type"], setup["device"], table["type"]) == ("setup", "cpu", "widths")
    assert [row["width"] for row in table["widths"]] == list(range(1, 9))
    assert table["step_ms"] > 0
    assert ">width 8</text>" in plot.read_text()
    kept = json.loads(Path(table["kept_in"]).read_text())
    assert len(kept["costs"]) == 8
    Path(table["kept_in"]).write_text("broken")
    assert bench("verify-width", str(model), "--repeats", "1").returncode == 0
    assert len(json.loads(Path(table["kept_in"]).read_text())["costs"]) == 8


def test_the_variants_are_run_in_turn_and_write_the_same_text(bench, model):
    done = bench("lookup", str(model), "-n", "12", "--repeats", "1", "--json")
    assert done.returncode == 0, done.stderr
    setup, *runs, summary = (json.loads(line) for line in done.stdout.splitlines())
    assert (setup["type"], summary["type"]) == ("setup", "summary")
    assert [run["variant"] for run in runs] == ["plain", "graded", "gated", "auto"] * 5
    assert max(run["tokens"] for run in runs) == 12
    assert [variant["differs_at"] for variant in summary["variants"]] == [None] * 20


def test_the_table_is_for_people(bench, model):
    done = bench("lookup", str(model), "-n", "4", "--repeats", "1")
    assert "edit a function   auto" in done.stdout
    assert "█" not in done.stdout, "bars are for terminals"
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("verify-width", "--repeats", "0"), "--repeats: must be 1 or more"),
        (("verify-width", "--max-draft", "65"), "--max-draft: must be from 1 to 64"),
        (("lookup", "-n", "1"), "--max-tokens: must be 2 or more"),
        (("lookup", "a", "-m", "b"), "--model: the model is named twice"),
        (("lookup", "--plot", "no/such/folder/a.svg"), "--plot: there is no folder"),
        (("lookup", "--plot", "a.png"), "--plot: writes SVG: name a file that ends in .svg"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name_before_a_model_is_loaded(bench, arguments, said):
    done = bench(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_measured_row_is_cut_back_each_time():
    engine = tiny_engine()
    watched = Watched(engine)
    table = width_table(engine, tuple(range(20)), widths=every_width(3), repeats=2)
    assert [width for width, _ in table.seconds] == [1, 2, 3, 4]
    assert table.prompt_tokens == 20
    widths = [fed.shape[1] for fed in watched.fed[1:]]
    assert widths == [1, 1, 1, 1, 2, 3, 4] * 3, "one turn is not counted"
    assert not storage_of(engine).arrays()
