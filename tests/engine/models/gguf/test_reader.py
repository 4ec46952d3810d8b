import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, ModelFileError, UnsupportedModel
from engine.models.gguf.convert import write_model
from engine.models.gguf.reader import open_gguf
from tests.engine.models.gguf.write_gguf import (
    BYTE_VOCABULARY,
    Raw,
    Sizes,
    family_metadata,
    family_weights,
    gguf_bytes,
    gguf_tensors,
    typed_value,
)

VALUES = {
    "a.text": "naïve ☃",
    "a.flag": True,
    "a.count": 7,
    "a.ratio": 0.5,
    "a.words": ["x", "", "🙂"],
    "a.numbers": [1, -2, 3],
}
MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def opened(tmp_path, data: bytes, name: str = "m.gguf"):
    path = tmp_path / name
    path.write_bytes(data)
    return open_gguf(path)


@pytest.mark.parametrize("version", [2, 3])
def test_what_was_written_is_read(tmp_path, version):
    tensors = {"matrix": MATRIX, "vector": MATRIX[0]}
    with opened(tmp_path, gguf_bytes(VALUES, tensors, version=version)) as file:
        assert file.metadata.text("a.text") == "naïve ☃"
        assert file.metadata.flag("a.flag", default=False) is True
        assert file.metadata.integer("a.count") == 7
        assert file.metadata.number("a.ratio") == 0.5
        assert file.metadata.texts("a.words") == ("x", "", "🙂")
        assert file.metadata.numbers("a.numbers").tolist() == [1, -2, 3]
        assert {name: tensor.shape for name, tensor in file.tensors.items()} == {
            "matrix": (2, 3),
            "vector": (3,),
        }
        rows = file.read_rows(file.tensors["matrix"])
        assert rows.view("<f4").tolist() == MATRIX.tolist()


def test_another_alignment_is_honoured(tmp_path):
    data = gguf_bytes({"general.alignment": 256}, {"a": MATRIX, "b": MATRIX + 1}, alignment=256)
    with opened(tmp_path, data) as file:
        assert file.tensors["b"].start % 256 == 0
        assert file.read_rows(file.tensors["b"]).view("<f4").tolist() == (MATRIX + 1).tolist()


def header(tensor_count: int, key_count: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + rest


def one_key(name: bytes, value: bytes) -> bytes:
    return header(0, 1, struct.pack("<Q", len(name)) + name + value)


def one_tensor(shape: list[int], type_id: int, offset: int = 0, name: bytes = b"w") -> bytes:
    entry = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
    entry += b"".join(struct.pack("<Q", length) for length in shape)
    return header(1, 0, entry + struct.pack("<IQ", type_id, offset) + bytes(64))


HUGE = 1 << 62


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "not a GGUF", id="an empty file"),
        pytest.param(b"GG", "not a GGUF", id="half a magic"),
        pytest.param(b"PK\x03\x04 a zip file", "not a GGUF", id="another kind of file"),
        pytest.param(b"GGUF", "inside the header", id="nothing behind the magic"),
        pytest.param(header(HUGE, 0), "declares .* tensors", id="more tensors than bytes"),
        pytest.param(header(0, HUGE), "declares .* metadata keys", id="more keys than bytes"),
        pytest.param(
            header(0, 1, struct.pack("<Q", HUGE) + bytes(64)), "a name of", id="an endless key"
        ),
        pytest.param(
            one_key(b"k", struct.pack("<IQ", 8, HUGE)), "inside metadata key 'k'", id="endless text"
        ),
        pytest.param(
            one_key(b"k", struct.pack("<IIQ", 9, 5, HUGE)),
            "'k' declares an array of",
            id="an endless array",
        ),
        pytest.param(
            one_key(b"k", struct.pack("<IIQ", 9, 8, 1 << 20) + bytes(64)),
            "strings in metadata key 'k'",
            id="more strings than bytes",
        ),
        pytest.param(
            one_key(b"k", struct.pack("<II", 99, 0)), "'k' has the unknown value type 99", id="type"
        ),
        pytest.param(
            one_key(b"k", struct.pack("<IIQ", 9, 99, 1) + bytes(8)),
            "'k' has the unknown value type 99",
            id="array type",
        ),
        pytest.param(one_key(b"\xff\xfe", bytes(8)), "not valid UTF-8", id="a key of no text"),
        pytest.param(
            one_key(b"k", struct.pack("<IQ", 8, 1) + b"\xff"),
            "'k' is not valid UTF-8",
            id="a value of no text",
        ),
        pytest.param(one_key(b"k", struct.pack("<IB", 7, 3)), "neither 0 nor 1", id="boolean 3"),
        pytest.param(
            header(0, 2, 2 * (struct.pack("<Q", 1) + b"k" + typed_value(True))),
            "'k' is there twice",
            id="a key twice",
        ),
        pytest.param(one_tensor([4, 4], 0, HUGE), "'w' ends at byte", id="an offset past the end"),
        pytest.param(one_tensor([HUGE, HUGE], 0), "'w' ends at byte", id="an endless tensor"),
        pytest.param(one_tensor([0], 0), "'w' has the shape", id="an empty tensor"),
        pytest.param(one_tensor([], 0), "'w' has 0 dimensions", id="no dimensions"),
        pytest.param(one_tensor([1] * 5, 0), "'w' has 5 dimensions", id="five dimensions"),
        pytest.param(
            one_tensor([33], 2), "impossible in the format Q4_0", id="a row of a block and a bit"
        ),
        pytest.param(
            gguf_bytes({"general.alignment": 3}, {}), "no power of two", id="a senseless alignment"
        ),
    ],
)
def test_a_broken_file_is_an_error_that_says_where(tmp_path, data, message):
    with pytest.raises(ModelFileError, match=message), opened(tmp_path, data):
        pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(header(0, 0, version=1), "version 1", id="the first version"),
        pytest.param(header(0, 0, version=4), "version 4", id="a version of the future"),
        pytest.param(b"GGUF\0\0\0\x03" + bytes(16), "big-endian", id="the other byte order"),
        pytest.param(one_tensor([256], 16), "'w' .* IQ2_XXS", id="a format not read here"),
        pytest.param(one_tensor([256], 12345), "'w' .* number 12345", id="an unknown format"),
        pytest.param(gguf_bytes({"split.count": 3}, {}), "split", id="one part of several"),
        pytest.param(
            one_key(b"k", struct.pack("<IIQ", 9, 9, 0)), "array of arrays", id="nested arrays"
        ),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, data, message):
    with pytest.raises(UnsupportedModel, match=message), opened(tmp_path, data):
        pass


def test_a_part_is_known_by_its_name_too(tmp_path):
    with (
        pytest.raises(UnsupportedModel, match="gguf-split"),
        opened(tmp_path, gguf_bytes({}, {}), "m-00001-of-00002.gguf"),
    ):
        pass


def test_a_folder_is_no_gguf_file(tmp_path):
    with pytest.raises(ModelFileError, match="cannot be opened"), open_gguf(tmp_path):
        pass


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    longer_than_a_buffer = np.zeros((100, 1000), np.float32)
    with opened(tmp_path, gguf_bytes({}, {"w": longer_than_a_buffer})) as file:
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        with pytest.raises(ModelFileError, match="inside tensor 'w'"):
            file.read_rows(file.tensors["w"])


def small_model() -> bytes:
    sizes = Sizes(hidden=32, inner=32, layers=1, heads=2, kv_heads=1, head_dim=16)
    tensors = dict(gguf_tensors("llama", sizes, family_weights("llama", sizes)))
    tensors["blk.0.attn_q.weight"] = Raw(2, (32, 32), bytes(32 * 18))
    return gguf_bytes(family_metadata("llama", sizes) | BYTE_VOCABULARY, tensors)


SMALL_MODEL = small_model()
HEADER_BYTES = SMALL_MODEL.index(b"blk.0.ffn_down.weight") + 64


def test_every_truncation_of_the_header_is_an_error(tmp_path):
    for length in range(0, HEADER_BYTES, 97):
        with pytest.raises(EngineError), opened(tmp_path, SMALL_MODEL[:length]):
            pass


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    patches=st.lists(
        st.tuples(
            st.integers(0, HEADER_BYTES - 1),
            st.one_of(
                st.binary(min_size=1, max_size=9),
                st.sampled_from([b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 40)]),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_patched_only_an_engine_error_comes_out(tmp_path, patches):
    data = bytearray(SMALL_MODEL)
    for start, patch in patches:
        data[start : start + len(patch)] = patch
    source, folder = tmp_path / "m.gguf", tmp_path / "out"
    source.write_bytes(data)
    folder.mkdir(exist_ok=True)
    with suppress(EngineError):
        write_model(source, folder, identity="patched")
        # Names, texts and numbers may change and the file stay sound; its size may not explode.
        assert sum(path.stat().st_size for path in folder.iterdir()) < 10 * len(SMALL_MODEL)


def test_tensors_that_overlap_are_refused(tmp_path):
    data = gguf_bytes(VALUES, {"first": MATRIX, "second": MATRIX + 1})
    entry = data.index(b"second") + len(b"second") + 4 + 2 * 8 + 4
    data = data[:entry] + struct.pack("<Q", 0) + data[entry + 8 :]
    with (
        pytest.raises(ModelFileError, match="'first' and 'second' overlap"),
        opened(tmp_path, data),
    ):
        pass


@pytest.mark.parametrize("count", [np.nan, np.inf, -1.0, 2.0])
def test_a_count_that_is_no_whole_number_is_refused(tmp_path, count):
    refused = pytest.raises(ModelFileError, match="'counts' is not an array of whole numbers")
    data = gguf_bytes({"counts": [count, count]}, {"w": MATRIX})
    with opened(tmp_path, data) as file, refused:
        file.metadata.counts("counts")
