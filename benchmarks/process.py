"""Runs one variant of a comparison as a process of its own and takes its figures."""

import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one variant."""

    first_token_s: float
    """From the start of the process to its first token."""
    prompt_per_second: float
    predicted_per_second: float
    peak_bytes: int
    """The operating system's account of the process."""
    text: str | list[int]


def run(command: list[str], env: dict[str, str] | None = None) -> Figures:
    """Run a command whose last line of output is JSON.

    Raises:
        RuntimeError: it failed; the message holds what it said.
    """
    with tempfile.TemporaryFile("w+") as errors:
        started = time.time()
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **(env or {})},
            text=True,
        )
        assert child.stdout is not None
        first_line, lines = 0.0, []
        for line in child.stdout:
            first_line = first_line or time.time()
            lines.append(line)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            raise RuntimeError(f"{command} failed ({child.returncode}): {errors.read()[-2000:]}")
    last = json.loads(lines[-1])
    # Our --json prints each delta as it comes; the peer notes the time and prints at the end.
    timings: dict[str, Any] = last.get("timings", last)
    return Figures(
        first_token_s=last.get("first_at", first_line) - started,
        prompt_per_second=timings["prompt_per_second"],
        predicted_per_second=timings["predicted_per_second"],
        peak_bytes=usage.ru_maxrss * 1024,
        text=last.get("text", last.get("tokens", "")),
    )


def medians(runs: list[Figures]) -> Figures:
    """The median of each figure."""
    return Figures(
        first_token_s=median(run.first_token_s for run in runs),
        prompt_per_second=median(run.prompt_per_second for run in runs),
        predicted_per_second=median(run.predicted_per_second for run in runs),
        peak_bytes=int(median(run.peak_bytes for run in runs)),
        text=runs[0].text,
    )
