import numpy as np
import pytest

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.architecture import model_config, read_architecture
from engine.models.gguf.metadata import GgufMetadata
from tests.engine.models.gguf.write_gguf import Sizes, family_metadata

SHAPES = {"token_embd.weight": (300, 64), **{f"blk.{n}.attn_q.weight": (64, 64) for n in range(9)}}


def config_of(family: str = "llama", factors=None, sizes: Sizes | None = None, **changes):
    values = family_metadata(family, sizes or Sizes())
    values |= {f"{family}.{key.replace('__', '.')}": value for key, value in changes.items()}
    metadata = GgufMetadata(
        "m.gguf", {key: value for key, value in values.items() if value is not None}
    )
    return model_config(metadata, read_architecture(metadata, SHAPES), factors)


def test_sizes_are_taken_over():
    config = config_of("qwen3")
    assert (config["hidden_size"], config["num_hidden_layers"]) == (64, 2)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert (config["head_dim"], config["intermediate_size"]) == (16, 96)
    assert (config["max_position_embeddings"], config["vocab_size"]) == (512, 300)
    assert (config["rope_theta"], config["model_type"]) == (50000.0, "qwen3")


def test_float32_constants_are_written_as_their_authors_wrote_them():
    assert config_of()["rms_norm_eps"] == 1e-5
    tiny = float(np.float32(1e-6))
    assert config_of(attention__layer_norm_rms_epsilon=tiny)["rms_norm_eps"] == 1e-6


def test_what_a_file_may_leave_out_has_the_formats_default():
    config = config_of(attention__head_count_kv=None, rope__freq_base=None)
    assert config["num_key_value_heads"] == 4
    assert config["rope_theta"] == 10_000
    assert config["head_dim"] == 16
    assert "rope_scaling" not in config


def test_an_output_tensor_means_an_untied_head():
    metadata = GgufMetadata("m.gguf", family_metadata("llama", Sizes()))
    assert read_architecture(metadata, SHAPES).is_tied
    assert not read_architecture(metadata, SHAPES | {"output.weight": (300, 64)}).is_tied


def test_biases_are_known_by_their_tensors():
    metadata = GgufMetadata("m.gguf", family_metadata("llama", Sizes()))
    biased = SHAPES | {"blk.0.attn_q.bias": (64,), "blk.0.ffn_up.bias": (96,)}
    config = model_config(metadata, read_architecture(metadata, biased), None)
    assert (config["attention_bias"], config["mlp_bias"]) == (True, True)
    assert (config_of()["attention_bias"], config_of()["mlp_bias"]) == (False, False)


def test_linear_and_yarn_scaling_are_taken_over():
    linear = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    assert config_of(**linear)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    yarn["rope__scaling__original_context_length"] = 128
    assert config_of("qwen2", **yarn)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    assert config_of(rope__scale_linear=2.0)["rope_scaling"]["factor"] == 2.0
    assert "rope_scaling" not in config_of(rope__scaling__type="none")


def test_llama_3_scaling_is_recognised_by_its_factors():
    import mlx.core as mx

    from engine.models.mlxlm import import_mlx_lm

    import_mlx_lm()
    from mlx_lm.models.rope_utils import Llama3RoPE

    expected = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    sizes = Sizes(heads=1, kv_heads=1, head_dim=64)
    # The factors that a converter writes: how much slower each dimension turns.
    scaled = Llama3RoPE(64, base=500_000.0, scaling_config=expected)._freqs
    plain = 500_000.0 ** (mx.arange(0, 64, 2) / 64)
    factors = np.array(scaled / plain)
    config = config_of(factors=factors, sizes=sizes, rope__freq_base=500_000.0)
    assert config["rope_scaling"] == expected
    with pytest.raises(UnsupportedModel, match=r"'rope_freqs\.weight'"):
        config_of(factors=factors * 1.01, sizes=sizes, rope__freq_base=500_000.0)
    with pytest.raises(UnsupportedModel, match=r"'rope_freqs\.weight'"):
        config_of(factors=factors[:-1], sizes=sizes, rope__freq_base=500_000.0)


def test_gemma_3_has_windows_and_two_rotary_bases():
    config = config_of("gemma3")
    assert (config["sliding_window"], config["sliding_window_pattern"]) == (16, 2)
    assert config["query_pre_attn_scalar"] == 16
    assert config["rope_local_base_freq"] == 10_000


def test_the_largest_gemma_3_scales_its_queries_by_width():
    sizes = Sizes(layers=62, heads=2, kv_heads=2)
    values = GgufMetadata("m.gguf", family_metadata("gemma3", sizes))
    shapes = {f"t{n}": (1,) for n in range(62)} | SHAPES
    config = model_config(values, read_architecture(values, shapes), None)
    assert config["query_pre_attn_scalar"] == 32


@pytest.mark.parametrize(
    ("pattern", "layers", "expected"),
    [
        pytest.param(None, 6, 6, id="six where the file is silent"),
        pytest.param(np.array([True, True, False, True]), 4, 3, id="a list of layers"),
    ],
)
def test_the_window_pattern_is_read(pattern, layers, expected):
    config = config_of(
        "gemma3", sizes=Sizes(layers=layers), attention__sliding_window_pattern=pattern
    )
    assert config["sliding_window_pattern"] == expected


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"expert_count": 8}, "mixture-of-experts"),
        ("llama", {"rope__dimension_count": 8}, "rope.dimension_count is 8"),
        ("llama", {"rope__scaling__type": "longrope"}, "'longrope'"),
        ("llama", {"attention__head_count": np.array([4, 2])}, "differs from layer to layer"),
        ("qwen3", {"attention__value_length": 32}, "value_length is 32"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "capped logits"),
        ("gemma3", {"attention__sliding_window_pattern": 3}, "none without a sliding window"),
        (
            "gemma3",
            {"attention__sliding_window_pattern": np.array([False, True])},
            "is irregular",
        ),
        ("gemma3", {"attention__sliding_window_pattern": np.array([True, True])}, "irregular"),
    ],
)
def test_what_the_model_class_would_compute_otherwise_is_refused(family, changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        config_of(family, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": None}, "'llama.block_count' is missing"),
        ({"block_count": 10_000}, "beyond the tensors"),
        ({"embedding_length": 0}, "'llama.embedding_length' is 0"),
        ({"attention__head_count": 3}, "does not divide"),
        ({"attention__head_count": 64, "attention__head_count_kv": 2}, "heads of 1 values"),
        ({"rope__freq_base": 0.0}, "'llama.rope.freq_base' is 0.0"),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, "factor is 0.0"),
        ({"context_length": 1 << 40}, "'llama.context_length' is"),
    ],
)
def test_senseless_sizes_are_an_error_that_names_the_key(changes, message):
    with pytest.raises(ModelFileError, match=message):
        config_of("llama", **changes)


def test_another_architecture_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'mamba' is not read from GGUF"):
        read_architecture(GgufMetadata("m.gguf", {"general.architecture": "mamba"}), SHAPES)


def test_a_model_without_an_embedding_is_an_error():
    metadata = GgufMetadata("m.gguf", family_metadata("llama", Sizes()))
    with pytest.raises(ModelFileError, match=r"'token_embd\.weight'"):
        read_architecture(metadata, {"output.weight": (3, 3)})
