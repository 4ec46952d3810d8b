import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.built_folder import STAMP_FILE
from engine.models.gguf.blocks import block_format
from engine.models.gguf.convert import convert_gguf
from engine.models.mlxlm import import_mlx_lm, model_classes
from tests.engine.models.gguf.write_gguf import (
    BYTE_VOCABULARY,
    Raw,
    Sizes,
    family_metadata,
    family_weights,
    gguf_tensors,
    tiny_gguf,
    write_gguf,
)

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
PROMPT = mx.array([[5, 80, 200, 17, 99, 3, 150, 42, 7, 7, 250, 31, 64, 128, 1, 12, 77, 180, 9, 21]])


def loaded(folder: Path):
    import_mlx_lm()
    from mlx_lm.utils import load_model

    return load_model(folder)[0]


def expected_config(family: str, sizes: Sizes) -> dict[str, object]:
    config: dict[str, object] = {
        "model_type": {"gemma3": "gemma3_text"}.get(family, family),
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": sizes.inner,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": 1e-5,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": 512,
        "rope_theta": 50000.0,
        "tie_word_embeddings": sizes.is_tied,
    }
    if family == "gemma3":
        config |= {"sliding_window": 16, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16}
    return config


def model_of(family: str, sizes: Sizes, weights):
    """mlx-lm's own class given the weights directly: no file between."""
    model_class, args_class = model_classes(expected_config(family, sizes))
    model = model_class(args_class.from_dict(expected_config(family, sizes)))
    arrays = {name: mx.array(weight) for name, weight in weights.items()}
    model.load_weights(list(model.sanitize(arrays).items()), strict=True)
    return model


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied head", "own head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_computes_what_its_weights_say(tmp_path, family, is_tied):
    sizes = Sizes(is_tied=is_tied)
    convert_gguf(tiny_gguf(tmp_path / "m.gguf", family, sizes), tmp_path / "out")
    expected = model_of(family, sizes, family_weights(family, sizes))(PROMPT)
    logits = loaded(tmp_path / "out")(PROMPT)
    # Gemma's norms pass through "plus one" in float32; the others are the very same numbers.
    tolerance = 1e-4 if family == "gemma3" else 0.0
    assert mx.allclose(logits, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_weights_are_copied_bit_for_bit(tmp_path, dtype):
    sizes = Sizes()
    weights = family_weights("llama", sizes)
    halves = {
        name: mx.array(weight).astype(getattr(mx, dtype)) if weight.ndim == 2 else mx.array(weight)
        for name, weight in weights.items()
    }
    rounded = {name: np.array(half.astype(mx.float32)) for name, half in halves.items()}
    tensors = {
        name: (as_half(tensor, dtype) if tensor.ndim == 2 else tensor)
        for name, tensor in gguf_tensors("llama", sizes, rounded).items()
    }
    source = write_gguf(
        tmp_path / "m.gguf", family_metadata("llama", sizes) | BYTE_VOCABULARY, tensors
    )
    convert_gguf(source, tmp_path / "out")
    stored = mx.load(str(tmp_path / "out/model.safetensors"))
    assert {name: array.dtype for name, array in stored.items()} == {
        name: half.dtype for name, half in halves.items()
    }
    assert all(mx.array_equal(stored[name], half) for name, half in halves.items())
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == dtype


def as_half(values, dtype: str):
    if dtype == "float16":
        return values.astype(np.float16)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def random_rows(type_id: int, shape: tuple[int, int], seed: int) -> Raw:
    """Random blocks whose scales are small: float16s with 0x0C for a high byte, about 2e-4."""
    form = block_format(type_id)
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // form.values, form.block_bytes), np.uint8)
    at = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    at |= {"Q4_1": [0, 2], "Q5_1": [0, 2]}
    for start in at.get(form.name, [0]):
        blocks[:, start + 1] = 0x0C
    return Raw(type_id, shape, blocks.tobytes())


KEPT_BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5}
TYPE_IDS = {block_format(number).name: number for number in range(40) if block_format(number)}
ROUNDED = ("Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS")


@pytest.mark.parametrize("name", [*KEPT_BITS, *ROUNDED])
def test_packed_weights_mean_in_mlx_what_they_mean_in_gguf(tmp_path, name):
    type_id, bits = TYPE_IDS[name], KEPT_BITS.get(name)
    sizes = Sizes(hidden=256, inner=256, layers=1, heads=4, kv_heads=2, head_dim=64)
    tensors = {
        name: random_rows(type_id, tensor.shape, seed) if tensor.ndim == 2 else tensor
        for seed, (name, tensor) in enumerate(
            gguf_tensors("llama", sizes, family_weights("llama", sizes)).items()
        )
    }
    source = write_gguf(
        tmp_path / "m.gguf", family_metadata("llama", sizes) | BYTE_VOCABULARY, tensors
    )
    notes = convert_gguf(source, tmp_path / "out")
    form = block_format(type_id)
    key = tensors["blk.0.attn_k.weight"]
    blocks = np.frombuffer(key.data, np.uint8).reshape(-1, form.block_bytes)
    values = form.dequantized(blocks).reshape(sizes.kv_heads, 32, 2, 256)
    expected = values.swapaxes(1, 2).reshape(-1, 256)
    stored = mx.load(str(tmp_path / "out/model.safetensors"))
    module = "model.layers.0.self_attn.k_proj"
    if bits is None:
        assert np.array_equal(np.array(stored[f"{module}.weight"]), expected.astype(np.float16))
        assert name in notes[0]
    else:
        parts = [stored[f"{module}.{part}"] for part in ("weight", "scales", "biases")]
        unpacked = np.array(mx.dequantize(*parts, group_size=32, bits=bits))
        # MLX rounds once more, in scale * code + bias.
        assert np.allclose(unpacked, expected, rtol=1e-6, atol=1e-6)
        assert notes == ()
    assert loaded(tmp_path / "out")(PROMPT).shape == (1, 20, sizes.vocabulary)


def test_layers_of_different_formats_are_distinguished_in_the_configuration(tmp_path):
    sizes = Sizes(hidden=64, inner=64)
    tensors = gguf_tensors("qwen3", sizes, family_weights("qwen3", sizes))
    for seed, name in enumerate([name for name, array in tensors.items() if array.ndim == 2]):
        type_id = {"token_embd.weight": 8, "blk.0.attn_v.weight": 7}.get(name, 3)
        if name != "blk.1.ffn_up.weight":
            tensors[name] = random_rows(type_id, tensors[name].shape, seed)
    source = write_gguf(
        tmp_path / "m.gguf", family_metadata("qwen3", sizes) | BYTE_VOCABULARY, tensors
    )
    convert_gguf(source, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"},
        "model.layers.0.self_attn.v_proj": {"group_size": 32, "bits": 5, "mode": "affine"},
    }
    assert loaded(tmp_path / "out")(PROMPT).shape == (1, 20, sizes.vocabulary)


def test_the_folder_names_every_token_that_ends_an_answer(tmp_path):
    convert_gguf(tiny_gguf(tmp_path / "m.gguf", "llama"), tmp_path / "out")
    content = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert content == {"bos_token_id": 1, "eos_token_id": [2, 0]}
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == [2, 0]


def test_infinite_scales_are_an_error_that_names_the_tensor(tmp_path):
    sizes = Sizes()
    tensors = gguf_tensors("llama", sizes, family_weights("llama", sizes))
    broken = random_rows(2, (64, 64), 0)
    broken.data = b"\x00\x7c" + broken.data[2:]
    tensors["blk.1.attn_q.weight"] = broken
    source = write_gguf(
        tmp_path / "m.gguf", family_metadata("llama", sizes) | BYTE_VOCABULARY, tensors
    )
    with pytest.raises(ModelFileError, match=r"blk\.1\.attn_q\.weight.*not finite"):
        convert_gguf(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == [".out.lock"]


def test_a_second_conversion_finds_the_first_and_writes_nothing(tmp_path):
    source = tiny_gguf(tmp_path / "m.gguf", "llama")
    convert_gguf(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    reports = []
    convert_gguf(source, tmp_path / "out", progress=reports.append)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    assert reports == []


def test_the_notes_are_there_for_whoever_comes_later(tmp_path):
    metadata = family_metadata("llama", Sizes()) | BYTE_VOCABULARY
    del metadata["tokenizer.ggml.pre"]
    tensors = gguf_tensors("llama", Sizes(), family_weights("llama", Sizes()))
    source = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    first = convert_gguf(source, tmp_path / "out")
    assert "GPT-2's way" in first[0]
    assert convert_gguf(source, tmp_path / "out") == first


@pytest.mark.parametrize("stale", ['{"format": 0, "source": "x", "notes": []}', "", None])
def test_a_stale_or_broken_cache_is_rebuilt(tmp_path, stale):
    source = tiny_gguf(tmp_path / "m.gguf", "llama")
    convert_gguf(source, tmp_path / "out")
    stamp = tmp_path / "out" / STAMP_FILE
    sound = stamp.read_text()
    if stale is None:
        stamp.unlink()
    else:
        stamp.write_text(stale)
    (tmp_path / "out/config.json").write_text("of an older version")
    convert_gguf(source, tmp_path / "out")
    assert stamp.read_text() == sound
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "llama"


def test_another_file_under_the_same_name_is_converted_again(tmp_path):
    source = tiny_gguf(tmp_path / "m.gguf", "llama", seed=1)
    convert_gguf(source, tmp_path / "out")
    tiny_gguf(source, "llama", seed=2)
    convert_gguf(source, tmp_path / "out")
    weights = mx.load(str(tmp_path / "out/model.safetensors"))
    expected = family_weights("llama", Sizes(), seed=2)["model.norm.weight"]
    assert np.array_equal(np.array(weights["model.norm.weight"]), expected)


def test_progress_counts_up_to_the_whole(tmp_path):
    reports = []
    convert_gguf(tiny_gguf(tmp_path / "m.gguf", "llama"), tmp_path / "out", progress=reports.append)
    done = [report.done for report in reports]
    assert done == sorted(done)
    assert reports[-1].done == reports[-1].total


def test_a_missing_file_is_a_named_error(tmp_path):
    with pytest.raises(ModelFileError, match="No such file"):
        convert_gguf(tmp_path / "none.gguf", tmp_path / "out")


def test_an_unsupported_file_leaves_no_folder(tmp_path):
    metadata = family_metadata("llama", Sizes()) | BYTE_VOCABULARY
    source = write_gguf(tmp_path / "m.gguf", metadata | {"llama.expert_count": 8}, {})
    with pytest.raises(UnsupportedModel):
        convert_gguf(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def run_conversion(source: Path, target: Path, before: str = "") -> subprocess.Popen[bytes]:
    """A process of its own that converts, after the statements `before`."""
    code = f"""
import sys
from pathlib import Path
from types import SimpleNamespace
from engine.errors import EngineError
from engine.models.gguf import convert
from engine.models.progress import no_report as report
{before}
try:
    convert.convert_gguf(Path({str(source)!r}), Path({str(target)!r}), progress=report)
except EngineError as error:
    sys.exit(str(error))
"""
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)


KILL_IN_THE_MIDDLE = """
import os
whole = convert.write_weights
def half(*parts):
    for number, written in enumerate(whole(*parts)):
        if number == 5:
            os.kill(os.getpid(), 9)
        yield written
convert.write_weights = half
"""


def test_a_kill_in_the_middle_leaves_nothing_that_looks_whole(tmp_path):
    source, target = tiny_gguf(tmp_path / "m.gguf", "llama"), tmp_path / "models" / "out"
    with run_conversion(source, target, KILL_IN_THE_MIDDLE) as killed:
        assert (killed.wait(), killed.stderr.read()) == (-signal.SIGKILL, b"")
    assert not target.exists()
    assert len(list(target.parent.iterdir())) == 2  # the lock file and the half-made folder
    convert_gguf(source, target)
    assert sorted(path.name for path in target.parent.iterdir()) == [".out.lock", "out"]
    assert loaded(target)(PROMPT).shape[0] == 1


def test_two_processes_at_once_make_one_folder(tmp_path):
    source, target = tiny_gguf(tmp_path / "m.gguf", "llama"), tmp_path / "out"
    turn = tmp_path / "turn"
    os.mkfifo(turn)  # the one that builds reads until the one that waits for it writes
    note = f"""
import signal
signal.alarm(60)  # where both build, nobody writes
whole = convert.write_model
def noted(source, folder, **options):
    Path(f"{{source}}.built-by-{{folder.name}}").touch()
    Path({str(turn)!r}).read_text()
    whole(source, folder, **options)
convert.write_model = noted
reports = []
def report(progress):
    reports.append(progress)
    if len(reports) == 1 and progress.stage.startswith("waiting"):
        Path({str(turn)!r}).write_text("waiting")
"""
    both = [run_conversion(source, target, note) for _ in range(2)]
    assert [(process.wait(), process.communicate()[1]) for process in both] == [(0, b""), (0, b"")]
    assert len(list(tmp_path.glob("*.built-by-*"))) == 1
    assert loaded(target)(PROMPT).shape[0] == 1


def test_a_full_disk_is_a_named_error_and_leaves_nothing(tmp_path):
    source, target = tiny_gguf(tmp_path / "m.gguf", "llama"), tmp_path / "models" / "out"
    # A limit on the size of files is met by the same write that a full disk refuses.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    assert source.stat().st_size > 100_000
    with run_conversion(source, target, limit) as process:
        _, message = process.communicate()
    assert process.returncode == 1
    assert b"cannot be written: File too large" in message
    assert b"Traceback" not in message
    assert [path.name for path in target.parent.iterdir()] == [".out.lock"]


def test_a_conversion_that_would_not_fit_the_disk_is_refused_before_it_writes(
    tmp_path, monkeypatch
):
    source = tiny_gguf(tmp_path / "m.gguf", "llama")
    monkeypatch.setattr(
        "shutil.disk_usage", lambda _: SimpleNamespace(total=2**40, used=2**40 - 5, free=5)
    )
    with pytest.raises(ModelFileError, match=r"takes .* GiB, and the disk has 0\.0 GiB left"):
        convert_gguf(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
