import pytest

from engine.errors import InvalidParams
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("parallel", {"limits": Limits(parallel=0)}),
        ("prefill_grant_interval", {"limits": Limits(grant_interval=-1)}),
        ("short_chunks", {"limits": Limits(short_chunks=0)}),
        ("short_tokens", {"limits": Limits(short_tokens=-1)}),
        ("max_queue_depth", {"queue_depth": -1}),
        ("kv_budget", {"kv_budget_tokens": 0}),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(field: str, settings: dict):
    with pytest.raises(InvalidParams) as refused:
        SchedulerSettings(**settings)
    assert refused.value.field == field
