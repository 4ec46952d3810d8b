"""A scope is what must be equal; where turns end is not part of it."""

import pytest

from engine.prompt_cache.key import CacheScope, CacheUse
from tests.engine.transfer_rigs import engine_of


@pytest.fixture(scope="module")
def model():
    return engine_of("dense").transfer.fingerprint


@pytest.mark.parametrize("field", ["session", "owner", "adapter", "template"])
def test_each_of_its_parts_makes_another_scope(field, model):
    assert CacheScope.of(model, CacheUse(**{field: "x"})) != CacheScope.of(model, CacheUse())


def test_another_model_makes_another_scope(model):
    other = engine_of("ring").transfer.fingerprint
    assert CacheScope.of(other, CacheUse()) != CacheScope.of(model, CacheUse())


def test_the_history_of_one_request_is_no_part_of_it(model):
    uses = (CacheUse(history_tokens=3), CacheUse(history_tokens=4), CacheUse())
    assert len({CacheScope.of(model, use) for use in uses}) == 1
