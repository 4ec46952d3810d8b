"""Models that storages are made for."""

from typing import Any

import pytest

from tests.engine.kv.rows import KINDS, Rows


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """One model per kind; storages are made afresh."""
    return {kind: Rows(kind).model for kind in KINDS}
