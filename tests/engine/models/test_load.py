"""Tests of engine/models/load.py."""

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from engine.errors import InvalidParams, MemoryShort, ModelFileError, UnsupportedModel
from engine.models.load import LoadOptions, ModelFacts, WeightForm, load
from engine.models.mlxlm import import_generation
from tests.engine.models.tiny import EOS_ID, FAMILIES, VOCAB_SIZE, write_json, write_tiny

PACKED = {"bits": 4, "group_size": 32}
on_cpu = pytest.mark.skipif(
    mx.default_device() != mx.cpu, reason="the CPU's choice of form and dtype"
)


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, **changes})


def rewrite_weights(folder: Path, change) -> None:
    weights = dict(mx.load(str(folder / "model.safetensors")))
    mx.eval(weights)
    change(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def logits_of(model) -> mx.array:
    return model(mx.array([[5, 100, 7, 258]]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_model_gives_the_logits_of_mlx_lms_own_loader(tmp_path, family):
    folder = write_tiny(tmp_path, family)
    import_generation()
    from mlx_lm.utils import load_model

    theirs, _ = load_model(folder)
    ours = load(folder).model
    assert mx.array_equal(logits_of(ours), logits_of(theirs))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", [WeightForm.DENSE, WeightForm.QUANTIZED])
def test_a_packed_model_gives_the_logits_of_mlx_lms_own_loader(tmp_path, family, form):
    folder = write_tiny(tmp_path, family, quantize=PACKED)
    import_generation()
    from mlx_lm.utils import load_model

    theirs, _ = load_model(folder)
    ours = load(folder, LoadOptions(form=form)).model
    assert mx.allclose(logits_of(ours), logits_of(theirs), rtol=1e-4, atol=1e-4)


def test_the_facts_of_a_model_are_those_of_its_files(tmp_path):
    facts = load(write_tiny(tmp_path / "small-llama", quantize=PACKED)).facts
    assert (facts.name, facts.family, facts.layers) == ("small-llama", "llama", 2)
    assert (facts.vocab_size, facts.context_tokens) == (VOCAB_SIZE, 512)
    assert facts.template_text is not None
    assert "<|im_start|>" in facts.template_text


@on_cpu
def test_kv_bytes_count_keys_and_values_of_every_layer(tmp_path):
    facts = load(write_tiny(tmp_path)).facts
    layers, kv_heads, head_dim, float32_bytes = 2, 2, 16, 4
    assert facts.kv_bytes_per_token == 2 * layers * kv_heads * head_dim * float32_bytes


@on_cpu
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_a_packed_model_with_room_becomes_dense_float32_on_the_cpu(tmp_path, dtype):
    facts = load(write_tiny(tmp_path, quantize=PACKED, dtype=dtype)).facts
    assert (facts.dtype, facts.quantization) == ("float32", None)
    assert "fastest on the CPU" in facts.notes[0]


@on_cpu
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_a_packed_model_without_room_stays_packed_with_float32_scales(tmp_path, dtype):
    folder = write_tiny(tmp_path, quantize=PACKED, dtype=dtype)
    loaded = load(folder, LoadOptions(available_bytes=0))
    floats = {
        array.dtype
        for _, array in tree_flatten(loaded.model.parameters())
        if mx.issubdtype(array.dtype, mx.floating)
    }
    assert floats == {mx.float32}
    assert loaded.facts.quantization == "4-bit group 32"
    assert logits_of(loaded.model).dtype == mx.float32


def test_the_caller_decides_the_dtype(tmp_path):
    loaded = load(write_tiny(tmp_path), LoadOptions(dtype="bf16"))
    assert loaded.facts.dtype == "bfloat16"
    assert logits_of(loaded.model).dtype == mx.bfloat16


@pytest.mark.parametrize(
    ("options", "field"),
    [
        pytest.param(LoadOptions(dtype="int4"), "dtype", id="an unknown dtype"),
        pytest.param(LoadOptions(form=WeightForm.QUANTIZED), "quantized", id="no packed weights"),
    ],
)
def test_what_a_checkpoint_cannot_give_is_refused_by_the_options_name(tmp_path, options, field):
    with pytest.raises(InvalidParams) as caught:
        load(write_tiny(tmp_path), options)
    assert caught.value.field == field


def test_modules_packed_otherwise_than_the_config_says_load_by_their_shapes(tmp_path):
    folder = write_tiny(tmp_path, quantize={"bits": 8, "group_size": 64})
    edit_config(folder, quantization={"bits": 4, "group_size": 32})
    loaded = load(folder, LoadOptions(form=WeightForm.QUANTIZED))
    assert loaded.facts.quantization == "8-bit group 64"


def test_a_packed_model_whose_config_says_nothing_of_it_loads(tmp_path):
    folder = write_tiny(tmp_path, quantize=PACKED)
    edit_config(folder, quantization=None)
    assert load(folder, LoadOptions(form=WeightForm.QUANTIZED)).facts.quantization is not None


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
@pytest.mark.parametrize("form", [WeightForm.DENSE, WeightForm.QUANTIZED])
def test_packings_with_byte_scales_load_in_both_forms(tmp_path, mode, form):
    folder = write_tiny(tmp_path, quantize={"mode": mode})
    loaded = load(folder, LoadOptions(form=form))
    assert mx.all(mx.isfinite(logits_of(loaded.model)))


def test_tied_embeddings_stay_tied_when_they_are_unpacked(tmp_path):
    loaded = load(
        write_tiny(tmp_path, "qwen3", quantize=PACKED), LoadOptions(form=WeightForm.DENSE)
    )
    names = [name for name, _ in tree_flatten(loaded.model.parameters())]
    assert [name for name in names if "embed" in name or "head" in name] == [
        "model.embed_tokens.weight"
    ]


def test_end_tokens_of_all_files_are_merged_and_impossible_ones_dropped(tmp_path):
    folder = write_tiny(tmp_path, eos_token_id=[3, VOCAB_SIZE, None])
    write_json(folder / "generation_config.json", {"eos_token_id": 4})
    assert load(folder).eos_ids == {3, 4, EOS_ID}


def test_generation_defaults_are_read_and_unusable_ones_are_unsaid(tmp_path):
    folder = write_tiny(tmp_path)
    write_json(
        folder / "generation_config.json", {"temperature": 0.6, "top_k": 20, "top_p": "high"}
    )
    defaults = load(folder).generation
    assert defaults == {"temperature": 0.6, "top_k": 20}


def test_the_preflight_knows_everything_before_a_weight_is_read(tmp_path):
    folder = write_tiny(tmp_path, quantize=PACKED)
    given: list[ModelFacts] = []
    seen: list[float] = []

    def refuse(facts: ModelFacts) -> None:
        given.append(facts)
        raise MemoryShort(2, 1, "too large")

    with pytest.raises(MemoryShort):
        load(folder, LoadOptions(preflight=refuse), progress=seen.append)
    assert seen == []
    assert given == [replace(load(folder).facts, template_text=None)]


def test_progress_ends_at_one(tmp_path):
    seen: list[float] = []
    load(write_tiny(tmp_path), progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


def test_a_missing_tensor_is_named(tmp_path):
    folder = write_tiny(tmp_path)
    rewrite_weights(folder, lambda weights: weights.pop("model.norm.weight"))
    with pytest.raises(ModelFileError, match=r"'model\.norm\.weight' is missing"):
        load(folder)


def test_a_tensor_the_model_does_not_know_is_named(tmp_path):
    folder = write_tiny(tmp_path)
    rewrite_weights(folder, lambda weights: weights.update(odd=mx.zeros(3)))
    with pytest.raises(ModelFileError, match="'odd' is not part"):
        load(folder)


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path):
    folder = write_tiny(tmp_path)
    rewrite_weights(folder, lambda weights: weights.update({"model.norm.weight": mx.zeros(65)}))
    with pytest.raises(ModelFileError, match=r"'model\.norm\.weight' has shape \(65,\)"):
        load(folder)


def test_a_tensor_of_the_wrong_kind_is_named(tmp_path):
    folder = write_tiny(tmp_path)
    wrong = mx.zeros(64, dtype=mx.int32)
    rewrite_weights(folder, lambda weights: weights.update({"model.norm.weight": wrong}))
    with pytest.raises(ModelFileError, match=r"'model\.norm\.weight' holds int32"):
        load(folder)


def test_scales_that_do_not_fit_their_weight_are_named(tmp_path):
    folder = write_tiny(tmp_path, quantize=PACKED)
    name = "model.layers.0.mlp.up_proj.scales"
    rewrite_weights(folder, lambda weights: weights.update({name: mx.zeros((128, 3))}))
    with pytest.raises(ModelFileError, match=r"layers\.0\.mlp\.up_proj\.weight"):
        load(folder)


def test_a_truncated_shard_names_the_tensor_it_cuts(tmp_path):
    folder = write_tiny(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"tensor '.+' is cut short"):
        load(folder)


def test_a_config_that_does_not_describe_the_family_is_a_file_error(tmp_path):
    folder = write_tiny(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    write_json(folder / "config.json", config)
    with pytest.raises(ModelFileError, match="hidden_size"):
        load(folder)


def test_an_unknown_family_is_named(tmp_path):
    folder = write_tiny(tmp_path)
    edit_config(folder, model_type="whale")
    with pytest.raises(UnsupportedModel, match="'whale'"):
        load(folder)


def test_a_models_own_code_is_never_run(tmp_path):
    folder = write_tiny(tmp_path)
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    edit_config(folder, model_file="evil.py")
    with pytest.raises(UnsupportedModel, match=r"evil\.py"):
        load(folder)


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes"])
def test_a_packing_of_other_tools_is_named_with_what_to_do(tmp_path, method):
    folder = write_tiny(tmp_path)
    edit_config(folder, quantization_config={"quant_method": method})
    with pytest.raises(UnsupportedModel, match=f"'{method}'.*MLX conversion"):
        load(folder)


def test_an_oversized_safetensors_header_is_refused_before_it_is_read(tmp_path):
    folder = write_tiny(tmp_path)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")
    with pytest.raises(ModelFileError, match="not a safetensors file"):
        load(folder)


@pytest.mark.starter
@on_cpu
def test_the_starter_loads_dense_with_a_peak_close_to_its_final_size(starter_folder):
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    facts = load(starter_folder).facts
    assert (facts.layers, facts.vocab_size, facts.context_tokens) == (30, 49152, 8192)
    assert (facts.dtype, facts.quantization) == ("float32", None)
    assert mx.get_peak_memory() - before <= 1.05 * facts.weight_bytes


@pytest.mark.starter
def test_the_starter_stays_packed_when_asked(starter_folder):
    facts = load(starter_folder, LoadOptions(form=WeightForm.QUANTIZED)).facts
    assert facts.quantization == "4-bit group 32 + 8-bit group 32"


@pytest.mark.starter
def test_a_load_that_fails_while_weights_come_in_ends_in_order(starter_folder, tmp_path):
    for file in starter_folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text("{")
    code = (
        "import sys, pathlib, engine.models.load as m\n"
        "from engine.errors import ModelFileError\n"
        "try:\n    m.load(pathlib.Path(sys.argv[1]))\n"
        "except ModelFileError:\n    sys.exit(7)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert [subprocess.run(command, check=False).returncode for _ in range(3)] == [7, 7, 7]
