import mlx.core as mx
import pytest

from engine.kv.storage import RowSnapshot, Storage
from tests.engine.kv.rows import KINDS, Rows


def test_a_snapshot_counts_its_bytes():
    snapshot = RowSnapshot(2, ((mx.zeros((1, 2), mx.float32),), (), (mx.zeros(3, mx.float16),)))
    assert snapshot.nbytes == 8 + 6
    assert snapshot.overshoot == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_storage_answers_the_contract(kind: str):
    storage = Rows(kind).storage
    missing = [name for name in vars(Storage) if name[0] != "_" and not hasattr(storage, name)]
    assert missing == []
