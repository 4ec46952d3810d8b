"""``mlxcel serve`` with faults on demand, run by tests as a program.

FAULTS is a JSON object. ``step_s`` and ``load_s`` are seconds that each decode step and a load
take longer. The others are texts, and what happens to prompts that hold them: ``fail_row`` breaks
their answers off, ``die`` ends the engine thread, ``sick`` makes the backend fail too often.
"""

import json
import os
import sys
import time
from dataclasses import replace

from mlxcel_cli import app

FAULTS = json.loads(os.environ.get("FAULTS", "{}"))


def carries(prompt_ids, name: str) -> bool:
    """Whether a prompt of the tiny model, a byte a token, holds the text of this fault."""
    text = FAULTS.get(name)
    return text is not None and text.encode() in bytes(one for one in prompt_ids if one < 256)


def spoil_engine() -> None:
    from engine.engine import Engine
    from engine.errors import EvalFailed

    open_row, submit, collect = Engine.open, Engine.submit, Engine.collect

    def faulty_open(self, params, **more):
        if carries(params.prompt_ids, "sick"):
            self.health.failures = 8
            self.health.succeeded = lambda: None
            raise EvalFailed("the device is lost")
        return open_row(self, params, **more)

    def slow_submit(self, seqs):
        time.sleep(FAULTS.get("step_s", 0))
        return submit(self, seqs)

    def faulty_collect(self, ticket):
        return [
            replace(outcome, error=EvalFailed("a fault in one row"), finish=None)
            if carries(self.ids(outcome.seq), "fail_row")
            else outcome
            for outcome in collect(self, ticket)
        ]

    Engine.open, Engine.submit, Engine.collect = faulty_open, slow_submit, faulty_collect


def spoil_scheduler() -> None:
    from engine.scheduler.scheduler import BatchScheduler

    submit, tick = BatchScheduler.submit, BatchScheduler.tick
    shots = []

    def noting_submit(self, *requests):
        shots.extend(one for one in requests if carries(one.params.prompt_ids, "die"))
        submit(self, *requests)

    def faulty_tick(self):
        if shots:
            raise RuntimeError("the engine thread is shot")
        return tick(self)

    BatchScheduler.submit, BatchScheduler.tick = noting_submit, faulty_tick


def spoil_loading() -> None:
    from mlxcel_cli.serve import model_host

    load = model_host.ModelHost.load

    def slow_load(self, report):
        hosted = load(self, report)
        time.sleep(FAULTS.get("load_s", 0))
        spoil_engine()
        spoil_scheduler()
        return hosted

    model_host.ModelHost.load = slow_load


if __name__ == "__main__":
    spoil_loading()
    sys.argv[0] = "mlxcel"
    app.main()
