import mlx.core as mx
import numpy as np
import pytest

from engine.models.gguf.convert import write_weights
from engine.models.gguf.packing import StoredArray

ARRAYS = [
    StoredArray("a.weight", "U32", (2, 3)),
    StoredArray("b", "F16", (4,)),
    StoredArray("c", "BF16", (1,)),
    StoredArray("d", "F32", (2,)),
]
CHUNKS = [
    np.arange(4, dtype="<u4").tobytes(),
    np.arange(4, 6, dtype="<u4").tobytes(),
    np.arange(4, dtype="<f2").tobytes(),
    b"\x80\x3f",
    np.array([0.5, -1], "<f4").tobytes(),
]


def test_mlx_reads_what_was_written_in_chunks(tmp_path):
    path = tmp_path / "w.safetensors"
    sizes = list(write_weights(path, ARRAYS, CHUNKS))
    assert sizes == [16, 8, 8, 2, 8]
    arrays, metadata = mx.load(str(path), return_metadata=True)
    assert metadata == {"format": "mlx"}
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "a.weight": [[0, 1, 2], [3, 4, 5]],
        "b": [0, 1, 2, 3],
        "c": [1],
        "d": [0.5, -1],
    }
    assert arrays["c"].dtype == mx.bfloat16


def test_data_begins_at_a_multiple_of_eight(tmp_path):
    path = tmp_path / "w.safetensors"
    list(write_weights(path, ARRAYS, CHUNKS))
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_data_of_another_length_than_declared_is_never_passed_off_as_whole(tmp_path):
    with pytest.raises(AssertionError, match="40 bytes of data for 42 declared"):
        list(write_weights(tmp_path / "w", ARRAYS, [*CHUNKS[:3], CHUNKS[4]]))
