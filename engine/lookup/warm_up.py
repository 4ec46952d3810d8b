"""Measuring what a verify round costs on this device, and warming its kernels on the way.

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
    held = engine.held_tokens(seq)
    seconds: dict[int, float] = {}
    step_seconds = float("inf")
    try:
        for _ in range(runs):
            step_seconds = min(step_seconds, _pipelined_step(engine, seq, clock))
            for width in widths:
                spent = _forward(engine, seq, width, clock)
                seconds[width] = min(spent, seconds.get(width, spent))
    finally:
        engine.rewind(seq, engine.held_tokens(seq) - held)
    return WidthCosts.from_seconds(seconds, step_seconds=step_seconds, max_width=max(widths))


def every_width(max_draft: int) -> list[int]:
    """The widths of a device that builds kernels by width: no round may be the first."""
    widest = max_draft + 1
    return sorted({*range(1, min(widest, EVERY_WIDTH_UP_TO) + 1), *few_widths(max_draft)})


def few_widths(max_draft: int) -> list[int]:
    """Powers of two and the widest: enough to know the costs where nothing has to be built."""
    widest = max_draft + 1
    powers = (2**power for power in range(widest.bit_length()))
    return sorted({width for width in powers if width < widest} | {widest})


def _pipelined_step(engine: WidthEngine, seq: SeqId, clock: Callable[[], float]) -> float:
    """Seconds of one plain step, each dispatched before the one before it is done."""
    started = clock()
    for step in range(PLAIN_STEPS):
        engine.forward_width(seq, 1, wait=step == PLAIN_STEPS - 1)
    spent = clock() - started
    engine.rewind(seq, PLAIN_STEPS)
    return spent / PLAIN_STEPS


def _forward(engine: WidthEngine, seq: SeqId, width: int, clock: Callable[[], float]) -> float:
    """Seconds of one forward that is waited for and cut off again."""
    started = clock()
    engine.forward_width(seq, width, wait=True)
    spent = clock() - started
    engine.rewind(seq, width)
    return spent
