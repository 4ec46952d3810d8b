"""Measuring what a verify round costs on this device, and warming its kernels on the way.

A first forward at a new width may build kernels: a short answer once ran at 0.65 of its plain
speed without a warm-up and at 1.07 with it.
"""

from collections.abc import Callable
from typing import Protocol

from engine.lookup.widths import WidthCosts
from engine.outcome import SeqId

PLAIN_STEPS = 4
"""Pipelined one-token forwards that are timed together."""

EVERY_WIDTH_UP_TO = 9
"""Wider than this only powers of two are measured; costs between them lie on a line."""


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
    engine: WidthEngine, seq: SeqId, max_draft: int, clock: Callable[[], float]
) -> WidthCosts:
    """Cost of widths 1 to ``max_draft + 1`` in pipelined steps; the row is as it was before.

    Args:
        engine: where the row lives.
        seq: a row whose prompt is all there but its last token.
        max_draft: longest draft.
        clock: seconds, monotonic.

    Raises:
        RowError: a width failed; its appends were cut off first.
    """
    held = engine.held_tokens(seq)
    try:
        _forward(engine, seq, 1)
        started = clock()
        for _ in range(PLAIN_STEPS - 1):
            engine.forward_width(seq, 1, wait=False)
        engine.forward_width(seq, 1, wait=True)
        step_seconds = (clock() - started) / PLAIN_STEPS
        engine.rewind(seq, PLAIN_STEPS)
        seconds = {}
        _forward(engine, seq, 2)
        for width in _widths(max_draft + 1):
            started = clock()
            engine.forward_width(seq, width, wait=True)
            seconds[width] = clock() - started
            engine.rewind(seq, width)
    finally:
        engine.rewind(seq, engine.held_tokens(seq) - held)
    return WidthCosts.from_seconds(seconds, step_seconds=step_seconds, max_width=max_draft + 1)


def _forward(engine: WidthEngine, seq: SeqId, width: int) -> None:
    engine.forward_width(seq, width, wait=True)
    engine.rewind(seq, width)


def _widths(widest: int) -> list[int]:
    few = set(range(2, min(widest, EVERY_WIDTH_UP_TO) + 1)) | {widest}
    power = 2 * (EVERY_WIDTH_UP_TO - 1)
    while power < widest:
        few.add(power)
        power *= 2
    return sorted(few)
