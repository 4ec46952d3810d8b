"""Converts a GGUF file to an mlx-lm folder: all of it or nothing.

Memory holds one packed tensor and one chunk of its output at a time; MLX is not used.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.errors import ModelFileError
from engine.models.built_folder import (
    Stamp,
    create_folder,
    fingerprint,
    is_made_from,
    read_stamp,
    write_stamp,
)
from engine.models.gguf.architecture import Architecture, Config, model_config, read_architecture
from engine.models.gguf.blocks import GROUP, Floats
from engine.models.gguf.packing import (
    StoredArray,
    array_data,
    decode_vector,
    is_rounded,
    kept_bits,
    stored_arrays,
)
from engine.models.gguf.reader import GGUFFile, TensorInfo, open_gguf
from engine.models.gguf.tensors import ROPE_FACTORS, Placement, place_tensors
from engine.models.gguf.tokenizer_files import (
    generation_config,
    guesses_pre_tokenizer,
    tokenizer_config,
    tokenizer_json,
)
from engine.models.gguf.vocabulary import Vocabulary, read_vocabulary
from engine.models.progress import Progress, ProgressReport, no_report

Placed = list[tuple[TensorInfo, Placement]]


def convert_gguf(
    source: Path, target: Path, *, progress: ProgressReport = no_report
) -> tuple[str, ...]:
    """Make the folder ``target`` from the file ``source``, unless it is there and current.

    Safe against a kill at any moment and against other processes doing the same. What ``progress``
    raises stops the work and leaves nothing.

    Returns:
        What the conversion decided, one sentence each; empty where nothing is worth saying.

    Raises:
        ModelFileError: ``source`` is broken, or ``target`` cannot be written.
        UnsupportedModel: ``source`` is sound but of a kind not read here.
    """
    try:
        identity = fingerprint(source)
    except OSError as error:
        raise ModelFileError(source, f"cannot be read: {error.strerror}") from error
    with writing(target):
        create_folder(
            target,
            lambda folder: write_model(source, folder, identity=identity, progress=progress),
            is_current=lambda folder: is_made_from(folder, identity),
            progress=progress,
        )
    stamp = read_stamp(target)
    return stamp.notes if stamp is not None else ()


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns what the operating system refuses (a full disk, no permission) into ModelFileError."""
    try:
        yield
    except OSError as error:
        raise ModelFileError(target, f"cannot be written: {error.strerror}") from error


def write_model(
    source: Path, folder: Path, *, identity: str, progress: ProgressReport = no_report
) -> None:
    """Fill the empty ``folder`` from the file ``source``; the stamp naming ``identity`` is last."""
    with open_gguf(source) as file:
        shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
        architecture = read_architecture(file.metadata, shapes)
        placed = place_tensors(architecture, file.tensors, source)
        vocabulary = read_vocabulary(file.metadata, architecture.vocab_size)
        config = model_config(file.metadata, architecture, _rope_factors(file))
        config |= generation_config(vocabulary) | _number_formats(placed)
        context_tokens = file.metadata.integer(f"{architecture.family}.context_length")
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", generation_config(vocabulary))
        _write_json(folder / "tokenizer.json", tokenizer_json(vocabulary, source))
        _write_json(
            folder / "tokenizer_config.json",
            tokenizer_config(file.metadata, vocabulary, context_tokens),
        )
        _write_tensors(file, folder / "model.safetensors", placed, architecture, progress)
    write_stamp(folder, Stamp(identity, tuple(_notes(placed, vocabulary))))


def write_weights(
    path: Path, arrays: Sequence[StoredArray], chunks: Iterable[bytes]
) -> Iterator[int]:
    """Write ``arrays``, whose data ``chunks`` gives in their order; yields each chunk's bytes.

    Never holds more than one chunk. Source: the safetensors format, huggingface/safetensors.

    Raises:
        OSError: the file cannot be written.
    """
    header = _weights_header(arrays)
    total = sum(array.byte_count for array in arrays)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        written = 0
        for chunk in chunks:
            file.write(chunk)
            written += len(chunk)
            yield len(chunk)
        assert written == total, f"{written} bytes of data for {total} declared"
        file.flush()
        os.fsync(file.fileno())


def _rope_factors(file: GGUFFile) -> Floats | None:
    tensor = file.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    return decode_vector(tensor.format, file.read_rows(tensor))


def _write_json(path: Path, content: Config) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def _write_tensors(
    file: GGUFFile,
    path: Path,
    placed: Placed,
    architecture: Architecture,
    progress: ProgressReport,
) -> None:
    arrays: list[StoredArray] = []
    for tensor, place in placed:
        arrays += stored_arrays(tensor, place)
    pieces = (
        piece
        for tensor, place in placed
        for piece in array_data(file.path, tensor, file.read_rows(tensor), place, architecture)
    )
    total = sum(array.byte_count for array in arrays)
    _check_space(path, total)
    done = 0
    for written in write_weights(path, arrays, pieces):
        done += written
        progress(Progress("converting", done, total))


def _check_space(path: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    if needed_bytes > free_bytes:
        raise ModelFileError(
            path.parent,
            f"the converted model takes {needed_bytes / 2**30:.1f} GiB, "
            f"and the disk has {free_bytes / 2**30:.1f} GiB left",
        )


def _weights_header(arrays: Sequence[StoredArray]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    start = 0
    for array in arrays:
        end = start + array.byte_count
        entries[array.name] = {
            "dtype": array.dtype,
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries).encode()
    # Readers map the data, so it begins at a multiple of eight.
    return text + b" " * (-len(text) % 8)


def _number_formats(placed: Placed) -> Config:
    """What ``config.json`` says about how weights are stored.

    ``torch_dtype`` is what the file was made for: the type to compute in where float32 is slow.
    """
    modules = {
        place.target.removesuffix(".weight"): bits
        for tensor, place in placed
        if (bits := kept_bits(tensor)) is not None
    }
    matrices = Counter(tensor.format.name for tensor, _ in placed if len(tensor.shape) == 2)
    usual_format = matrices.most_common(1)[0][0]
    config: Config = {
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16"}.get(usual_format, "float16")
    }
    if modules:
        usual_bits = Counter(modules.values()).most_common(1)[0][0]
        quantization: Config = {"group_size": GROUP, "bits": usual_bits, "mode": "affine"}
        for module, bits in modules.items():
            if bits != usual_bits:
                quantization[module] = {"group_size": GROUP, "bits": bits, "mode": "affine"}
        config["quantization"] = quantization
    return config


def _notes(placed: Placed, vocabulary: Vocabulary) -> Iterator[str]:
    rounded = Counter(tensor.format.name for tensor, _ in placed if is_rounded(tensor))
    if rounded:
        formats = ", ".join(sorted(rounded))
        yield (
            f"{sum(rounded.values())} tensors in the formats {formats}, which MLX cannot hold "
            "quantized, are stored as float16 and take more memory than in the GGUF file"
        )
    if guesses_pre_tokenizer(vocabulary):
        yield (
            "the GGUF file does not say how text is cut before tokenizing; GPT-2's way is taken, "
            "which may differ from the model's own"
        )
