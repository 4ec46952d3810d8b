"""Measured costs are kept by what they depend on; what cannot be read was never measured."""

from dataclasses import replace

import pytest

from engine.lookup.widths import WidthCosts
from engine.lookup.widths_file import Measured, WidthCostsFile

HERE = Measured(model="a: float32", device="cpu", blas="kernels, 2 threads")
COSTS = WidthCosts((1.0, 1.25, 1.5, 2.0))


def test_costs_come_back(tmp_path):
    kept = WidthCostsFile(tmp_path, HERE)
    assert kept.load(3) is None
    kept.save(COSTS)
    assert WidthCostsFile(tmp_path, HERE).load(3) == COSTS
    assert [path.suffix for path in kept.path.parent.iterdir()] == [".json"]


def test_longer_drafts_than_measured_are_not_known(tmp_path):
    kept = WidthCostsFile(tmp_path, HERE)
    kept.save(COSTS)
    assert kept.load(2) == COSTS
    assert kept.load(4) is None


@pytest.mark.parametrize(
    "change", [{"model": "b"}, {"device": "cuda"}, {"blas": "1 thread"}], ids=str
)
def test_another_model_device_or_blas_has_its_own_costs(tmp_path, change):
    WidthCostsFile(tmp_path, HERE).save(COSTS)
    assert WidthCostsFile(tmp_path, replace(HERE, **change)).load(3) is None


def test_another_version_measures_anew(tmp_path, monkeypatch):
    WidthCostsFile(tmp_path, HERE).save(COSTS)
    monkeypatch.setattr("engine.lookup.widths_file.version", lambda name: "99")
    assert WidthCostsFile(tmp_path, HERE).load(3) is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"\xff", b'{"key": {}}', b'{"costs": [1]}', b'{"key": null, "costs": []}',
    ],
    ids=str,
)  # fmt: skip
def test_a_file_that_cannot_be_read_counts_as_none_and_is_replaced(tmp_path, content):
    kept = WidthCostsFile(tmp_path, HERE)
    kept.save(COSTS)
    kept.path.write_bytes(content)
    assert kept.load(3) is None
    kept.save(COSTS)
    assert kept.load(3) == COSTS


@pytest.mark.parametrize("costs", ["[]", "[1, -1]", "[1, NaN]", '["a"]', "7", "null"])
def test_costs_that_mean_nothing_count_as_none(tmp_path, costs):
    kept = WidthCostsFile(tmp_path, HERE)
    kept.save(COSTS)
    text = kept.path.read_text()
    kept.path.write_text(text[: text.index('"costs": ')] + f'"costs": {costs}}}')
    assert kept.load(1) is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "verify-widths").write_text("a file in the way")
    kept = WidthCostsFile(tmp_path, HERE)
    kept.save(COSTS)
    assert kept.load(3) is None
