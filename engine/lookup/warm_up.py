"""Measures what a verify round costs on this device, and warms its kernels on the way.

A first forward at a new width may build kernels: a short answer once ran at 0.65 of its plain
speed without a warm-up and at 1.07 with it. Each width is therefore run more than once, and its
shortest time counts: nothing but another program's work makes a forward longer.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.lookup.widths import WidthCosts
from engine.outcome import SeqId

PLAIN_STEPS = 3
"""Pipelined one-token forwards that are timed together."""

RUNS = 2
"""Forwards of each width."""

EVERY_WIDTH_UP_TO = 9
"""Wider than this only powers of two are run; costs between them lie on a line."""


class WidthEngine(Protocol):
    """What the measurement asks of the engine."""

    def forward_width(self, seq: SeqId, width: int, *, wait: bool) -> None:
        """Forward the row's next token ``width`` times over."""
        ...

    def rewind(self, seq: SeqId, tokens: int) -> None:
        """Cut a row back."""
        ...

    def held_tokens(self, seq: SeqId) -> int:
        """Tokens the row's KV holds."""
        ...


def warm_up_verify_widths(
    engine: WidthEngine,
    seq: SeqId,
    widths: Sequence[int],
    clock: Callable[[], float],
    *,
    runs: int = RUNS,
) -> WidthCosts:
    """Cost of verify rounds up to the widest of ``widths``; the row is as it was before.

    Args:
        engine: where the row lives.
        seq: a row whose prompt is all there but its last token.
        widths: which ones to run, `every_width` or `few_widths`.
        clock: seconds, monotonic.
        runs: forwards of each width, in turn; the shortest counts.

    Raises:
        RowError: a width failed; its appends were cut off first.
    """
    steps, seconds = time_widths(engine, seq, widths, clock, runs=runs)
    return WidthCosts.from_seconds(
        {width: min(spent) for width, spent in seconds.items()},
        step_seconds=min(steps),
        max_width=max(widths),
    )


def time_widths(
    engine: WidthEngine,
    seq: SeqId,
    widths: Sequence[int],
    clock: Callable[[], float],
    *,
    runs: int,
    report: Callable[[int], object] = bool,
) -> tuple[list[float], dict[int, list[float]]]:
    """Time plain steps and forwards of each width in turn; the row is as it was before.

    Args:
        engine: where the row lives.
        seq: a row whose prompt is all there but its last token.
        widths: tokens of a forward.
        clock: seconds, monotonic.
        runs: how often each is timed.
        report: called with a run's index when it is done.

    Returns:
        Seconds of a pipelined one-token step, and by width of a forward, of each run.

    Raises:
        RowError: a width failed; its appends were cut off first.
    """
    held = engine.held_tokens(seq)
    steps: list[float] = []
    seconds: dict[int, list[float]] = {width: [] for width in widths}
    try:
        for done in range(runs):
            steps.append(_seconds(engine, seq, 1, clock, forwards=PLAIN_STEPS))
            for width in widths:
                seconds[width].append(_seconds(engine, seq, width, clock))
            report(done)
    finally:
        engine.rewind(seq, engine.held_tokens(seq) - held)
    return steps, seconds


def every_width(max_draft: int) -> list[int]:
    """The widths of a device that builds kernels by width: no round may be the first."""
    widest = max_draft + 1
    return sorted({*range(1, min(widest, EVERY_WIDTH_UP_TO) + 1), *few_widths(max_draft)})


def few_widths(max_draft: int) -> list[int]:
    """Powers of two and the widest: enough to know the costs where nothing has to be built."""
    widest = max_draft + 1
    powers = (2**power for power in range(widest.bit_length()))
    return sorted({width for width in powers if width < widest} | {widest})


def _seconds(
    engine: WidthEngine, seq: SeqId, width: int, clock: Callable[[], float], *, forwards: int = 1
) -> float:
    """Seconds of one of ``forwards`` that follow one another; the last is waited for."""
    started = clock()
    for place in range(forwards):
        engine.forward_width(seq, width, wait=place == forwards - 1)
    spent = clock() - started
    engine.rewind(seq, forwards * width)
    return spent / forwards
