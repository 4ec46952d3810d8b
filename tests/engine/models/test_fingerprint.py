"""What makes two models different, and what does not."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from engine.models.fingerprint import ModelFingerprint, model_fingerprint
from engine.models.load import LoadOptions, WeightForm, load
from tests.engine.models.tiny import write_tiny
from tests.engine.rigs import tiny_model


def fingerprint(model: Any, **changes: Any) -> ModelFingerprint:
    facts = {
        "family": "llama",
        "vocab_size": 259,
        "eos_ids": [258],
        "storage": "dense",
        "files": "",
    }
    return model_fingerprint(model, **(facts | changes))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


def test_a_copy_of_a_model_in_another_place_is_the_same_model(tmp_path):
    models = [load(write_tiny(tmp_path / name)).model for name in ("here", "there")]
    first, second = map(fingerprint, models)
    assert first == second
    assert first.differences(second) == ()


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"family": "qwen3"}, "family qwen3 there, llama here"),
        ({"vocab_size": 300}, "vocab_size 300 there, 259 here"),
        ({"eos_ids": [2, 1]}, "eos_ids (1, 2) there, (258,) here"),
        ({"files": "b"}, "files b there,  here"),
        ({"storage": "ring"}, "storage ring there, dense here"),
    ],
)
def test_a_difference_is_named_with_both_values(model, changes, difference):
    assert fingerprint(model).differences(fingerprint(model, **changes)) == (difference,)


def test_every_weight_counts():
    whole = fingerprint(tiny_model("llama"))
    names = [name for name, _ in nn.utils.tree_flatten(tiny_model("llama").parameters())]
    assert len(names) > 15
    for name in names:
        model = tiny_model("llama")
        model.apply_to_modules(lambda _path, module: module.unfreeze())
        flat = dict(nn.utils.tree_flatten(model.parameters()))
        model.load_weights([(name, flat[name] * 1.001)], strict=False)
        assert whole.differences(fingerprint(model))[0].startswith("weights "), name


def test_packed_weights_are_of_another_type(tmp_path):
    folder = write_tiny(tmp_path / "m", quantize={"group_size": 32, "bits": 4})
    packed = load(folder, LoadOptions(form=WeightForm.QUANTIZED)).model
    dense = load(folder, LoadOptions(form=WeightForm.DENSE)).model
    named = fingerprint(dense).differences(fingerprint(packed))
    assert "dtype float32+uint32 there, float32 here" in named
    assert not any(one.startswith("weights") for one in named)


def test_bfloat16_weights_and_scalars_can_be_looked_at():
    model = nn.Module()
    model.layers = []
    model.scale = mx.array(2.0, mx.bfloat16)
    assert fingerprint(model).parameters == 1
