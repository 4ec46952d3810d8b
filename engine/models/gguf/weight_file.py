"""Writes a safetensors file front to back, without ever holding more than one piece of it.

Source: the safetensors format, huggingface/safetensors, README.md.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from engine.models.gguf.packing import StoredArray


def write_weights(
    path: Path, arrays: Sequence[StoredArray], pieces: Iterable[bytes]
) -> Iterator[int]:
    """Write ``arrays``, whose data ``pieces`` gives in their order; yields each piece's bytes.

    Raises:
        OSError: the file cannot be written.
    """
    header = _header(arrays)
    total = sum(array.byte_count for array in arrays)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        written = 0
        for piece in pieces:
            file.write(piece)
            written += len(piece)
            yield len(piece)
        assert written == total, f"{written} bytes of data for {total} declared"
        file.flush()
        os.fsync(file.fileno())


def _header(arrays: Sequence[StoredArray]) -> bytes:
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
