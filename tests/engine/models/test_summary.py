"""Tests of engine/models/summary.py."""

import pytest
from mlx.utils import tree_flatten

from engine.errors import ModelFileError
from engine.models.summary import summarize
from tests.engine.models.tiny import tiny_model, tiny_settings, write_tiny


@pytest.mark.parametrize("packing", [None, {"bits": 4, "group_size": 32}])
def test_packed_weights_count_as_many_as_dense_ones(tmp_path, packing):
    model = tiny_model(tiny_settings("llama"))
    count = sum(array.size for _, array in tree_flatten(model.parameters()))
    assert summarize(write_tiny(tmp_path, quantize=packing)).parameters == count


def test_a_summary_reports_what_the_files_say(tmp_path):
    summary = summarize(write_tiny(tmp_path))
    assert (summary.layers, summary.stored_dtypes) == (2, ("F32",))
    assert summary.has_template


def test_a_truncated_shard_is_an_error(tmp_path):
    file = write_tiny(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="cut short"):
        summarize(tmp_path)
