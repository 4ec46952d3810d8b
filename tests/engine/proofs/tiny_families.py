"""A tiny random model of every family mlx-lm has: the settings each one needs, as a table.

`SHARED` holds the geometry they have in common; an entry of `FAMILIES` adds what is special about
a family. Each key is a module of ``mlx_lm.models``.
"""

import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from engine.models.mlxlm import import_mlx_lm
from tests.engine.proofs.tiny_geometry import SHARED, VOCAB, WINDOW

_MLA = {"num_key_value_heads": 4}
_YARN_FREE = {"rope_type": "default", "rope_theta": 10000.0}
_LAYER_ROPES = {"sliding_attention": _YARN_FREE, "full_attention": _YARN_FREE}
_LLAMA4_ROPE = {
    "rope_theta": 10000.0,
    "rope_type": "default",
    "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 16,
}
_KDA = {
    "kda_layers": [1],
    "full_attn_layers": [2],
    "num_heads": 4,
    "head_dim": 8,
    "short_conv_kernel_size": 3,
}
_GEMMA3N = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": VOCAB,
    "rope_local_base_freq": 10000.0,
    "final_logit_softcapping": 30.0,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    "hidden_size_per_layer_input": 8,
    "altup_num_inputs": 2,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 8,
}
_GEMMA4 = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 16,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
    "tie_word_embeddings": True,
}
_LFM2 = {
    "layer_types": ["conv", "full_attention"],
    "block_dim": 32,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
}
_QWEN35 = {"full_attention_interval": 2, "rope_parameters": {**_YARN_FREE, "mrope_section": []}}

TEXT = "text_config"
"""Key of the settings of a family that nests its language model."""

FAMILIES: dict[str, dict[str, Any]] = {
    "Klear": {},
    "afm7": {"num_kv_reuse_layers": 1},
    "afmoe": {"num_dense_layers": 1},
    "apertus": {},
    "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2},
    "bailing_hybrid": {**_MLA},
    "bailing_moe": {},
    "bailing_moe_linear": {},
    "bailing_moe_v3": {**_MLA, "moe_shared_expert_intermediate_size": 32},
    "cohere": {},
    "cohere2": {},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek": {},
    "deepseek_v2": {**_MLA, "rope_scaling": {"type": "yarn", "factor": 2.0}},
    "deepseek_v3": {**_MLA},
    "deepseek_v32": {**_MLA},
    "deepseek_v41": {},
    "dots1": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone": {},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"is_moe_layer": [False, True]},
    "falcon_h1": {
        "mamba_d_head": 8,
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "head_dim": 8,
    },
    "gear": {
        "layer_types": ["conv_mixer", "sliding_attention", "full_attention"],
        "num_hidden_layers": 3,
    },
    "gemma": {},
    "gemma2": {"num_hidden_layers": 2},
    "gemma3": {TEXT: {}},
    "gemma3_text": {},
    "gemma3n": {TEXT: _GEMMA3N},
    "gemma4": {TEXT: _GEMMA4},
    "gemma4_text": _GEMMA4,
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": {**_MLA},
    "glm_moe_dsa": {**_MLA, "rope_parameters": _YARN_FREE},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gpt_oss": {},
    "gptj": {},
    "granite": {},
    "granitemoe": {},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_n_groups": 2,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
    },
    "helium": {},
    "hunyuan": {
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "alpha": 100.0, "factor": 1.0},
    },
    "hunyuan_v1_dense": {},
    "internlm2": {},
    "internlm3": {},
    "iquestloopcoder": {"loop_window_size": WINDOW},
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
    },
    "kimi_k25": {TEXT: {**_MLA}},
    "kimi_k3": {TEXT: {**_MLA, "linear_attn_config": _KDA, "num_experts_per_token": 2}},
    "kimi_linear": {**_MLA, "linear_attn_config": _KDA},
    "kimi_vl": {TEXT: {**_MLA}},
    "laguna": {"partial_rotary_factor": 1.0},
    "lfm2-vl": {TEXT: _LFM2},
    "lfm2": _LFM2,
    "lfm2_moe": {**_LFM2, "num_dense_layers": 1, "use_expert_bias": True},
    "lille-130m": {"n_embd": 192, "n_head": 4},
    "llama": {},
    "llama4": {
        TEXT: {
            "num_hidden_layers": 4,
            "num_experts_per_tok": 1,
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 48,
        }
    },
    "llama4_text": {"intermediate_size_mlp": 48, "no_rope_layers": [1, 0]},
    "longcat_flash": {**_MLA, "attention_method": "MLA"},
    "longcat_flash_ngram": {**_MLA},
    "mamba": {},
    "mamba2": {"num_heads": 8, "time_step_limit": (0.001, 100.0)},
    "mellum": {"rope_parameters": _LAYER_ROPES},
    "mimo": {},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0],
        "moe_layer_freq": [0, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "swa_v_head_dim": 8,
    },
    "minicpm": {},
    "minicpm3": {**_MLA, "rope_scaling": {"type": "longrope", "factor": 1.0}},
    "minimax": {},
    "minimax_m3_vl": {
        TEXT: {
            "layer_types": ["full_attention", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse"],
            "moe_layer_freq": None,
            "dense_intermediate_size": 48,
            "index_block_size": 8,
            "index_topk_blocks": 2,
        }
    },
    "ministral3": {"rope_parameters": _LLAMA4_ROPE},
    "mistral3": {TEXT: {"model_type": "llama"}},
    "mistral4": {**_MLA, "rope_parameters": _LLAMA4_ROPE},
    "mixtral": {},
    "muse_glimmer": {},
    "nanbeige": {"num_loops": 2},
    "nanochat": {},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
        ]
    },
    "nemotron": {"hidden_act": "relu2"},
    "nemotron_h": {
        "num_hidden_layers": 3,
        "hybrid_override_pattern": ["M", "*", "-"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "ssm_state_size": 8,
    },
    "olmo2": {},
    "olmo3": {},
    "olmo_hybrid": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_allow_neg_eigval": True,
    },
    "olmoe": {},
    "openelm": {
        "num_transformer_layers": 2,
        "model_dim": 32,
        "ffn_dim_divisor": 8,
        "num_query_heads": [4, 4],
        "num_kv_heads": [2, 2],
        "ffn_multipliers": [1.0, 2.0],
    },
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"partial_rotary_factor": 1.0},
    "phimoe": {
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [1.0] * 4,
            "short_mscale": 1.0,
            "long_mscale": 1.0,
            "original_max_position_embeddings": 512,
        }
    },
    "phixtral": {"num_vocab": VOCAB, "model_dim": 32, "rotary_dim": 4},
    "pixtral": {TEXT: {"model_type": "llama"}},
    "plamo": {"n_shared_head": 2},
    "plamo2": {"full_attention_idx": [1], "mamba_num_heads": 4, "tie_word_embeddings": True},
    "plamo3": {},
    "qwen": {"no_bias": True, "kv_channels": 8},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen2_vl": {TEXT: {}},
    "qwen3": {},
    "qwen3_5": {TEXT: _QWEN35},
    "qwen3_5_moe": {TEXT: _QWEN35},
    "qwen3_moe": {},
    "qwen3_next": {"full_attention_interval": 2},
    "qwen3_vl": {TEXT: {}},
    "qwen3_vl_moe": {TEXT: {}},
    "recurrent_gemma": {
        "conv1d_width": 3,
        "logits_soft_cap": 30.0,
        "block_types": ["recurrent", "attention"],
    },
    "rwkv7": {
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
    "seed_oss": {},
    "smollm3": {},
    "solar_open": {},
    "spark2_5": {"rope_parameters": _LAYER_ROPES},
    "stablelm": {},
    "starcoder2": {},
    "step3p5": {},
    "talkie": {},
    "telechat3": {},
    "youtu_llm": {**_MLA},
}


NOT_RUN = {
    "bitnet": "its packed ternary weights need a Metal kernel; nothing else of it is special",
    "muse_spark": "a fused kernel of its attention exists for Metal only",
    "olmo": "needs the Python package ai2-olmo",
    "phi3small": "mlx-lm's own greedy answers differ from run to run on a CPU",
    "prism_hadamard_qwen35": "exists only as 2-bit weights with a manifest of their rotations",
}
"""Modules of mlx-lm that the sweep leaves out, and why."""


def settings(module: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a tiny model of a family."""
    own = FAMILIES[module]
    values = {**SHARED, **own, "model_type": own.get("model_type", module), **changes}
    if TEXT in own:
        values[TEXT] = {**SHARED, "model_type": module, **own[TEXT]}
    return values


def build(module: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random float32 model whose logits depend on the whole prompt."""
    import_mlx_lm()
    family = importlib.import_module(f"mlx_lm.models.{module}")
    model = family.Model(family.ModelArgs.from_dict(settings(module, **changes)))
    key = mx.random.key(seed)
    drawn = []
    for path, parameter in tree_flatten(model.parameters()):
        key, own = mx.random.split(key)
        noise = mx.random.normal(parameter.shape, key=own)
        if parameter.dtype == mx.float32 and parameter.ndim > 1:
            parameter = 1.5 / parameter.shape[-1] ** 0.5 * noise
        elif parameter.dtype == mx.float32:  # gains and biases that start at zero mute a branch
            parameter = parameter + 0.2 * noise
        drawn.append((path, parameter))
    model.update(tree_unflatten(drawn))
    mx.eval(model.parameters())
    return model
