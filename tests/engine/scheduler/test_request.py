import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from engine.finish import FinishCause
from engine.outcome import Timings, Usage
from engine.params import SequenceParams
from engine.scheduler.queue import Priority
from engine.scheduler.request import Done, ScheduledRequest

ROOT = Path(__file__).parents[3]


def test_a_request_is_frozen_and_of_normal_priority():
    request = ScheduledRequest("a", SequenceParams((1,)))
    assert request.priority is Priority.NORMAL
    with pytest.raises(FrozenInstanceError):
        request.id = "b"  # type: ignore[misc]


@pytest.mark.parametrize("cause", FinishCause)
def test_only_a_full_context_truncates(cause: FinishCause):
    done = Done("a", cause, None, Usage(1, 1), Timings(1, 0.0, 1, 0.0, 0.0), 0)
    assert done.truncated == (cause is FinishCause.CONTEXT_EXHAUSTED)


def test_requests_events_and_plans_load_no_arrays():
    names = ["request", "queue", "budget", "preemption", "admission", "state", "tick", "stats"]
    code = "import sys; " + "; ".join(f"import engine.scheduler.{name}" for name in names)
    code += "; sys.exit('mlx' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
